"""What a collection has, what it lacks, and the rates that it gives."""

from collections import Counter

import pyarrow.parquet as pq
import pytest
from support.journals import make_result, make_run, write_trial
from support.tasks import write_task

from harness.pool.difficulty import TrialEnd
from harness.pool.index import TaskPointer
from harness.verifier.verdict import Status
from tasks.collection import LABEL, CollectionError, missing, remove_half_written, standing, write_groups
from tasks.draw import as_groups
from tasks.statistics.intervals import wilson
from tasks.summarise_collection import RATES, rates, summarise_collection, summary
from trainer.rollout import Outcome

LOST = Outcome.INFRA_ERROR


@pytest.fixture
def pool(tmp_path):
    return [TaskPointer(name, write_task(tmp_path / "pool" / name)) for name in ("a", "b", "c")]


def put(run, task, number, status, outcome=Outcome.COMPLETED):
    result = make_result(f"{task}-{number}", f"{LABEL}/{task}", outcome)
    object.__setattr__(result.spec, "task_id", task)
    return write_trial(run, LABEL, result, status)


def test_trials_are_made_attempt_by_attempt_over_all_tasks(pool):
    groups = as_groups(pool, LABEL, 3)
    order = [group.task_id for group in missing(groups, Counter())]
    assert order == ["a", "b", "c"] * 3
    ended = Counter({f"{LABEL}/a": 2, f"{LABEL}/b": 3})
    assert [group.task_id for group in missing(groups, ended)] == ["c", "c", "a", "c"]


def test_what_infrastructure_broke_is_made_again_and_what_was_not_graded_is_graded(tmp_path, pool):
    run = make_run(tmp_path)
    put(run, "a", 0, Status.PASSED)
    put(run, "a", 1, Status.TAMPERED)
    put(run, "a", 2, None, LOST)
    put(run, "b", 0, None)
    put(run, "b", 1, Status.INFRA_ERROR)
    put(run, "c", 0, Status.BROKEN, Outcome.AGENT_TIMEOUT)
    groups = as_groups(pool, LABEL, 3)
    there = standing(run, groups)
    assert (dict(there.passed), dict(there.failed), there.lost) == (
        {f"{LABEL}/a": 1},
        {f"{LABEL}/a": 1, f"{LABEL}/c": 1},
        1,
    )
    assert sorted(trial.session_id for trial in there.ungraded) == ["b-0", "b-1"]
    lacking = Counter(group.task_id for group in missing(groups, there.ended))
    assert lacking == {"a": 1, "b": 1, "c": 2}
    assert standing(run, groups[:1]).failed.total() == 1, "only of the groups that are asked for"


def test_half_a_trial_is_removed_and_a_whole_one_is_not(tmp_path):
    run = make_run(tmp_path)
    assert remove_half_written(run) == 0
    whole = put(run, "a", 0, None).folder
    half = run.journal.trials_dir(LABEL) / "a-1"
    half.mkdir()
    (half / "trajectory.json").write_text("{}")
    outside = tmp_path / "outside"
    outside.mkdir()
    (half.parent / "link").symlink_to(outside)
    assert remove_half_written(run) == 2
    assert run.journal.trials(LABEL) == [whole] and outside.is_dir() and list(half.parent.iterdir()) == [whole]


def test_a_task_that_became_another_is_refused(tmp_path, pool):
    run = make_run(tmp_path)
    write_groups(run, pool[:2], 2)
    write_groups(run, pool, 4)
    (pool[1].task_path / "instruction.md").write_text("another bug\n")
    write_groups(run, pool[:1], 4)
    with pytest.raises(CollectionError, match=r"1 tasks of .* changed since .* the first b; choose another name"):
        write_groups(run, pool, 4)


def test_rates_are_of_the_trials_that_count(pool):
    ends = [TrialEnd("a", "completed", "passed", 1.0), TrialEnd("a", "max_turns", "failed", 0.0)]
    ends += [TrialEnd("a", "infra_error", None, None)] * 5 + [TrialEnd("a", "completed", "infra_error", 0.0)]
    ends += [TrialEnd("b", "completed", "passed", 1.0)] * 4 + [TrialEnd("c", "infra_error", None, None)]
    table = rates(as_groups(pool, LABEL, 4), ends, {"a": (1.5, 20.0)})
    a, b, c = table.to_pylist()
    interval = wilson(1, 2)
    assert (a["n"], a["k"], a["lost"], a["pass_rate"], a["band"]) == (2, 1, 6, 0.5, "medium")
    assert (a["low"], a["high"]) == (interval.low, interval.high)
    assert (a["turns"], a["tokens"], b["turns"]) == (1.5, 20.0, None)
    assert (b["n"], b["k"], b["pass_rate"], b["band"]) == (4, 4, 1.0, "solved") and b["low"] < 1.0 == b["high"]
    assert (c["n"], c["k"], c["lost"], c["pass_rate"], c["band"]) == (0, 0, 1, None, None)
    found = summary(table)
    assert (found["tasks"], found["measured"], found["mixed"], found["lost"]) == (3, 2, 1, 7)
    assert (found["wanted"], found["counted"], found["coverage"]) == (12, 6, 0.5)
    assert found["mean_pass_rate"] == 0.75 and found["short"] == ["a", "c"]
    fewer = summary(rates(as_groups(pool, LABEL, 3), ends, {}))
    assert (fewer["counted"], fewer["trials"], fewer["solved"]) == (5, 6, 5), "4 of 3 wanted ones count as 3, and are 4"
    assert found["bands"] == {"unsolved": 0, "hard": 0, "medium": 1, "easy": 0, "solved": 1}


async def test_the_record_tells_why_trials_were_lost(tmp_path, pool):
    run = make_run(tmp_path)
    write_groups(run, pool, 2)
    put(run, "a", 0, Status.PASSED)
    put(run, "a", 1, Status.FAILED)
    put(run, "b", 0, None, LOST)
    put(run, "c", 0, Status.INFRA_ERROR)
    record = await summarise_collection.fn(run, {"seconds": 1.0})
    assert record["reasons"] == {"SandboxError: gone": 1, "grading: it infra_error": 1}
    assert (record["counted"], record["wanted"], record["solved"]) == (2, 6, 1)
    assert [row["n"] for row in pq.read_table(run.journal.root / RATES).to_pylist()] == [2, 0, 0]
    assert pq.read_table(run.journal.root / "trials.parquet").num_rows == 4


async def test_a_collection_without_trials_has_no_rates(tmp_path, pool):
    run = make_run(tmp_path)
    write_groups(run, pool, 2)
    record = await summarise_collection.fn(run, {"seconds": 0.0})
    assert record["mean_pass_rate"] is None and record["coverage"] == 0.0 and record["measured"] == 0
