"""Which rollouts reach the optimizer, with which reward, and what is said about the others."""

import pyarrow.parquet as pq
import pytest
from support.journals import make_result, make_run, write_trial

from harness.verifier.verdict import Status
from tasks.assemble_batch import assemble_batch
from tasks.compute_advantages import compute_advantages
from trainer.algorithms.advantages.grpo import EPSILON
from trainer.algorithms.config import AlgorithmConfig
from trainer.batch import read_train_batch
from trainer.rollout import Outcome

LABEL = "step_000001"
A, B, C, D = (f"{LABEL}/{name}" for name in "abcd")


@pytest.fixture
def run(tmp_path):
    """Group a: 8 trials, one of them lost to infrastructure. b: one survivor of two. c: all failed. d: all passed."""
    run = make_run(tmp_path)

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
    await assemble_batch.fn(run, LABEL)
    rows = pq.read_table(batch_path(run)).to_pylist()
    sessions = [row["session_id"] for row in rows]
    assert sessions == [*(f"a-{i}" for i in range(7)), "c-0", "c-1", "d-0", "d-1"]
    assert {row["session_id"]: row["reward"] for row in rows if row["reward"]} == {
        "a-0": 1.0, "a-1": 1.0, "d-0": 1.0, "d-1": 1.0
    }  # fmt: skip
    assert {row["session_id"]: row["outcome"] for row in rows}["a-3"] == "overlong"


async def test_the_baseline_is_that_of_the_survivors(run):
    """Seven over seven: the trial that infrastructure lost is neither a success nor a failure."""
    await assemble_batch.fn(run, LABEL)
    await compute_advantages.fn(run, LABEL, AlgorithmConfig())
    rows = {row["session_id"]: row for row in read_train_batch(batch_path(run)).to_pylist()}
    mean = 2 / 7
    deviation = (sum((r - mean) ** 2 for r in (1, 1, 0, 0, 0, 0, 0)) / 6) ** 0.5
    for i in range(7):
        want = (rows[f"a-{i}"]["reward"] - mean) / (deviation + EPSILON)
        assert rows[f"a-{i}"]["advantage"] == pytest.approx(want, rel=1e-12)
    assert {rows[s]["advantage"] for s in ("c-0", "c-1", "d-0", "d-1")} == {0.0}


async def test_advantages_may_be_computed_again(run):
    await assemble_batch.fn(run, LABEL)
    first = await compute_advantages.fn(run, LABEL, AlgorithmConfig())
    table = read_train_batch(batch_path(run))
    assert await compute_advantages.fn(run, LABEL, AlgorithmConfig()) == first
    # as text, since NaN is unequal to itself
    assert str(read_train_batch(batch_path(run)).to_pylist()) == str(table.to_pylist())
    assert first["critic/advantages/min"] < 0 < first["critic/advantages/max"]


async def test_the_algorithm_is_asked_for_its_scale(run):
    await assemble_batch.fn(run, LABEL)
    metrics = await compute_advantages.fn(run, LABEL, AlgorithmConfig(norm_adv_by_std=False))
    assert metrics["critic/advantages/max"] == pytest.approx(1 - 2 / 7)


async def test_metrics_of_what_was_left_out(run):
    metrics = await assemble_batch.fn(run, LABEL)
    assert {name.rpartition("/")[2]: metrics[name] for name in metrics if "filter/reason" in name} == {
        "infra_error": 1.0, "verifier_infra_error": 1.0, "nothing_sampled": 1.0, "lone_survivor": 1.0
    }  # fmt: skip
    assert metrics["trajectory_filter/invalid_count"] == 4
    assert metrics["trajectory_filter/invalid_ratio"] == 4 / 15


async def test_metrics_of_what_was_kept(run):
    metrics = await assemble_batch.fn(run, LABEL)
    assert metrics["batch/rollouts"] == 11
    assert metrics["batch/groups"] == 3
    assert metrics["batch/groups_with_signal"] == metrics["batch/solve_none"] == metrics["batch/solve_all"] == 1
    assert metrics["critic/score/mean"] == pytest.approx(4 / 11)
    assert (metrics["response_length/min"], metrics["response_length/max"]) == (2, 3)
    assert metrics["prompt_length/mean"] == 3


async def test_metrics_of_all_trials(run):
    metrics = await assemble_batch.fn(run, LABEL)
    outcomes = {str(outcome): metrics[f"outcome/{outcome}"] for outcome in Outcome}
    assert outcomes == {"completed": 11, "max_turns": 1, "overlong": 1, "agent_timeout": 1, "infra_error": 1}
    assert metrics["verdict/passed"] == 5 and metrics["verdict/infra_error"] == 1
    assert metrics["response_length/clip_ratio"] == 1 / 15
    assert metrics["timing_s/agent_loop/agent/mean"] == 2.0
    assert metrics["timing_s/agent_loop/verifier/max"] == 0.25
    assert (metrics["num_turns/min"], metrics["num_turns/max"]) == (0, 1)


async def test_the_file_is_the_same_however_trials_ended(run, tmp_path):
    await assemble_batch.fn(run, LABEL)
    first = str(pq.read_table(batch_path(run)).to_pylist())
    batch_path(run).unlink()
    await assemble_batch.fn(run, LABEL)
    assert str(pq.read_table(batch_path(run)).to_pylist()) == first


async def test_a_round_in_which_nothing_survives_gives_an_empty_batch(tmp_path):
    run = make_run(tmp_path)
    write_trial(run, LABEL, make_result("a-0", A, outcome=Outcome.INFRA_ERROR), None)
    metrics = await assemble_batch.fn(run, LABEL)
    assert metrics["batch/rollouts"] == 0 and metrics["trajectory_filter/invalid_ratio"] == 1
    assert await compute_advantages.fn(run, LABEL, AlgorithmConfig()) == {}
    assert read_train_batch(batch_path(run)).num_rows == 0
