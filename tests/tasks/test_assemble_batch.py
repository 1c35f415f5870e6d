"""Which rollouts reach the optimizer, with which reward, and what is said about the others."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.journals import make_result, make_run, write_trial

from harness.pool.index import TaskPointer
from harness.verifier.verdict import Status
from tasks.assemble_batch import assemble_batch
from tasks.config import FilterConfig
from tasks.draw import as_groups, groups_path, groups_table
from tasks.journal import JournalError, write_json, write_table
from tasks.reward import RewardConfig, RewardError
from trainer.rollout import Outcome

LABEL = "step_000001"
A, B, C, D = (f"{LABEL}/{name}" for name in "abcd")
PLAIN = (FilterConfig(), RewardConfig())


def draw_groups(run, names="abcd", refill=0, greedy=False):
    groups = as_groups([TaskPointer(name, Path(f"/pool/{name}")) for name in names], LABEL, 8, greedy)
    write_table(groups_path(run.journal.stage_dir(LABEL), refill), groups_table(groups))


@pytest.fixture
def run(tmp_path):
    """Group a: 8 trials, one of them lost to infrastructure. b: one survivor of two. c: all failed. d: all passed."""
    run = make_run(tmp_path)
    draw_groups(run)

    def write(session, group, status=Status.PASSED, **result):
        write_trial(run, LABEL, make_result(session, group, **result), status)

    write("a-0", A, Status.PASSED)
    write("a-1", A, Status.PASSED, outcome=Outcome.MAX_TURNS)
    write("a-2", A, Status.FAILED, turns=((4, 5, 6),))
    write("a-3", A, Status.BROKEN, outcome=Outcome.OVERLONG)
    write("a-4", A, Status.TAMPERED)
    write("a-5", A, Status.FAILED, outcome=Outcome.AGENT_TIMEOUT)
    write("a-6", A, Status.FAILED)
    write("a-7", A, None, outcome=Outcome.INFRA_ERROR)
    write("b-0", B, Status.PASSED)
    write("b-1", B, Status.INFRA_ERROR)
    for i in range(2):
        write(f"c-{i}", C, Status.FAILED)
        write(f"d-{i}", D, Status.PASSED)
    write("d-2", D, Status.FAILED, turns=None)
    return run


def batch_path(run):
    return run.journal.stage_dir(LABEL) / "batch.parquet"


async def test_rows_of_the_batch(run):
    await assemble_batch.fn(run, LABEL, *PLAIN)
    rows = pq.read_table(batch_path(run)).to_pylist()
    sessions = [row["session_id"] for row in rows]
    assert sessions == [*(f"a-{i}" for i in range(7)), "c-0", "c-1", "d-0", "d-1"]
    assert {row["session_id"]: row["reward"] for row in rows if row["reward"]} == {
        "a-0": 1.0, "a-1": 1.0, "d-0": 1.0, "d-1": 1.0
    }  # fmt: skip
    assert {row["session_id"]: row["outcome"] for row in rows}["a-3"] == "overlong"


async def test_metrics_of_what_was_left_out(run):
    metrics = await assemble_batch.fn(run, LABEL, *PLAIN)
    assert {name.rpartition("/")[2]: metrics[name] for name in metrics if "filter/reason" in name} == {
        "infra_error": 1.0, "verifier_infra_error": 1.0, "nothing_sampled": 1.0, "lone_survivor": 1.0
    }  # fmt: skip
    assert metrics["trajectory_filter/invalid_count"] == 4
    assert metrics["trajectory_filter/invalid_ratio"] == 4 / 15


async def test_metrics_of_all_trials(run):
    metrics = await assemble_batch.fn(run, LABEL, *PLAIN)
    outcomes = {str(outcome): metrics[f"outcome/{outcome}"] for outcome in Outcome}
    assert outcomes == {"completed": 11, "max_turns": 1, "overlong": 1, "agent_timeout": 1, "infra_error": 1}
    assert metrics["verdict/passed"] == 5 and metrics["verdict/infra_error"] == 1
    assert metrics["response_length/clip_ratio"] == 1 / 15
    assert metrics["timing_s/agent_loop/agent/mean"] == 2.0
    assert metrics["timing_s/agent_loop/verifier/max"] == 0.25


async def test_the_file_is_the_same_however_trials_ended(run, tmp_path):
    await assemble_batch.fn(run, LABEL, *PLAIN)
    first = str(pq.read_table(batch_path(run)).to_pylist())
    batch_path(run).unlink()
    await assemble_batch.fn(run, LABEL, *PLAIN)
    assert str(pq.read_table(batch_path(run)).to_pylist()) == first


async def test_a_round_in_which_nothing_survives_gives_an_empty_batch(tmp_path):
    run = make_run(tmp_path)
    draw_groups(run, "a")
    write_trial(run, LABEL, make_result("a-0", A, outcome=Outcome.INFRA_ERROR), None)
    metrics = await assemble_batch.fn(run, LABEL, *PLAIN)
    assert metrics["trajectory_filter/invalid_ratio"] == 1
    assert pq.read_table(batch_path(run)).num_rows == 0


async def test_a_trial_of_no_group_is_an_error(run):
    write_trial(run, LABEL, make_result("e-0", f"{LABEL}/e"))
    with pytest.raises(JournalError, match=r"e-0: group 'step_000001/e' is none of this round's"):
        await assemble_batch.fn(run, LABEL, *PLAIN)


async def test_outcomes_that_are_dropped_leave_batch_and_baseline(run):
    filters = FilterConfig(drop_outcomes=["overlong", "agent_timeout"], min_response_tokens=3)
    metrics = await assemble_batch.fn(run, LABEL, filters, RewardConfig())
    # a-2 alone sampled three tokens; one survivor has nothing to be compared with
    assert pq.read_table(batch_path(run)).num_rows == 0
    reasons = {name.rpartition("/")[2]: metrics[name] for name in metrics if "filter/reason" in name}
    assert reasons == {
        "infra_error": 1.0, "verifier_infra_error": 1.0, "nothing_sampled": 1.0, "overlong": 1.0, "agent_timeout": 1.0,
        "too_short": 9.0, "lone_survivor": 1.0,
    }  # fmt: skip


async def test_groups_without_signal_leave_the_batch(run):
    metrics = await assemble_batch.fn(run, LABEL, FilterConfig(drop_uniform_groups=True), RewardConfig())
    rows = pq.read_table(batch_path(run)).to_pylist()
    assert [row["session_id"] for row in rows] == [f"a-{i}" for i in range(7)]
    found = {name.removeprefix("training/filter_groups/"): metrics[name] for name in metrics if "filter_groups" in name}
    assert found == {
        "drawn_groups": 4, "accepted_groups": 1, "refill_rounds": 0, "evicted_samples": 2,
        "filtered_reward_counts/0": 1, "filtered_reward_counts/1": 1, "filtered_reward_counts/mixed": 0,
    }  # fmt: skip
    # no failure of infrastructure, so none of the trajectory filter's
    assert metrics["trajectory_filter/invalid_count"] == 4


async def test_without_the_group_filter_none_is_evicted(run):
    metrics = await assemble_batch.fn(run, LABEL, *PLAIN)
    assert metrics["training/filter_groups/evicted_samples"] == 0
    assert metrics["training/filter_groups/accepted_groups"] == 3


async def test_groups_of_refills_are_in_the_batch_with_the_first(run):
    draw_groups(run, "ef", refill=1)
    draw_groups(run, "g", refill=2)
    for name in "eg":
        write_trial(run, LABEL, make_result(f"{name}-0", f"{LABEL}/{name}"), Status.PASSED)
        write_trial(run, LABEL, make_result(f"{name}-1", f"{LABEL}/{name}"), Status.FAILED)
    metrics = await assemble_batch.fn(run, LABEL, FilterConfig(drop_uniform_groups=True, refill_rounds=3), PLAIN[1])
    groups = set(pq.read_table(batch_path(run)).column("group_id").to_pylist())
    assert groups == {A, f"{LABEL}/e", f"{LABEL}/g"}
    counts = [metrics[f"training/filter_groups/{n}"] for n in ("drawn_groups", "accepted_groups", "refill_rounds")]
    assert counts == [7, 3, 2]


async def test_shaping_changes_the_reward_and_not_the_score(run):
    """a-2 sampled three tokens, the others two: half of the penalty."""
    reward = RewardConfig(overlong_buffer=2, overlong_length=4, overlong_penalty=0.5)
    await assemble_batch.fn(run, LABEL, FilterConfig(drop_uniform_groups=True), reward)
    rows = {row["session_id"]: row for row in pq.read_table(batch_path(run)).to_pylist()}
    assert {s: (rows[s]["score"], rows[s]["reward"]) for s in ("a-0", "a-2", "a-3")} == {
        "a-0": (1.0, 1.0), "a-2": (0.0, -0.25), "a-3": (0.0, 0.0)
    }  # fmt: skip


async def test_a_reward_that_is_no_number_stops_the_step(run, tmp_path, monkeypatch):
    (tmp_path / "nan_rewards.py").write_text(
        "def compute_score(trial):\n    return float('nan') if trial.session_id == 'c-1' else {'tests': trial.reward}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RewardError, match=r"session c-1: nan_rewards:compute_score.* returned nan"):
        await assemble_batch.fn(run, LABEL, FilterConfig(), RewardConfig(function="nan_rewards:compute_score"))
    assert not batch_path(run).exists()


async def test_a_greedy_trial_is_its_groups_baseline_and_nothing_else(tmp_path):
    run = make_run(tmp_path)
    draw_groups(run, "abc", greedy=True)
    for name in "abc":
        for i in range(2):
            write_trial(run, LABEL, make_result(f"{name}-{i}", f"{LABEL}/{name}", turns=((4, 5),)), Status.FAILED)
    write_trial(run, LABEL, make_result("a-g", f"{A}#greedy", turns=((4,) * 9,)), Status.PASSED)
    write_trial(run, LABEL, make_result("b-g", f"{B}#greedy", outcome=Outcome.INFRA_ERROR), None)
    write_trial(run, LABEL, make_result("c-g", f"{C}#greedy"), Status.FAILED)
    metrics = await assemble_batch.fn(run, LABEL, FilterConfig(drop_uniform_groups=True), RewardConfig())
    rows = pq.read_table(batch_path(run)).to_pylist()
    # the greedy trial of c failed as all others did
    assert [(row["session_id"], row["greedy_baseline"]) for row in rows] == [("a-0", 1.0), ("a-1", 1.0)]
    assert metrics["trajectory_filter/reason/no_greedy_baseline"] == 2
    assert "trajectory_filter/reason/infra_error" not in metrics
    assert metrics["trajectory_filter/invalid_ratio"] == 2 / 6
    assert metrics["outcome/completed"] == 6 and metrics["verdict/passed"] == metrics["outcome/infra_error"] == 0
    assert metrics["training/filter_groups/drawn_groups"] == 3
    assert metrics["critic/greedy_baseline/mean"] == 0.5


async def test_the_baseline_is_shaped_as_rewards_are(tmp_path):
    run = make_run(tmp_path)
    draw_groups(run, "a", greedy=True)
    for i in range(2):
        write_trial(run, LABEL, make_result(f"a-{i}", A), Status.FAILED)
    write_trial(run, LABEL, make_result("a-g", f"{A}#greedy", turns=((4,) * 9,)), Status.PASSED)
    await assemble_batch.fn(run, LABEL, FilterConfig(), RewardConfig(overlong_buffer=4, overlong_length=8))
    assert pq.read_table(batch_path(run)).column("greedy_baseline").to_pylist() == [0.0, 0.0]


async def test_the_batch_of_an_update_that_was_made_stays_as_it_is(run):
    """It has advantages by now, and a replay needs them."""
    await assemble_batch.fn(run, LABEL, *PLAIN)
    batch = pq.read_table(batch_path(run))
    write_table(batch_path(run), batch.append_column("advantages", [[0.0] * batch.num_rows]))
    write_json(run.journal.stage_dir(LABEL) / "update.json", {})
    await assemble_batch.fn(run, LABEL, *PLAIN)
    assert "advantages" in pq.read_schema(batch_path(run)).names


async def test_a_trial_that_was_never_graded_does_not_go_missing(run):
    write_trial(run, LABEL, make_result("c-9", C), None)
    with pytest.raises(JournalError, match="c-9 ended, but was never graded"):
        await assemble_batch.fn(run, LABEL, *PLAIN)
