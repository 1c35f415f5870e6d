"""A run goes on after its engines died, gives up when they die time and again, and hides no other failure."""

import pytest
from support.journals import make_run

from tasks.journal import step_label, write_json
from tasks.outlive_engines import STARTS, outliving_engines
from trainer.fidelity.gate import FidelityError


class Work:
    """Fails so often, having finished a step before each failure that `progress` says."""

    def __init__(self, run, failures, error=RuntimeError, progress=()):
        self.run, self.failures, self.error, self.progress = run, failures, error, progress
        self.done, self.starts = 0, 0

    async def __call__(self):
        self.done += 1
        if self.done in self.progress:
            write_json(self.run.journal.stage_dir(step_label(self.done)) / "record.json", {})
        if self.done <= self.failures:
            raise self.error("rank 0 died in update")
        return "weights"

    async def start(self):
        self.starts += 1


def faults(*found):
    async def told():
        return list(found)

    return told


async def test_dead_engines_are_started_again(tmp_path):
    run = make_run(tmp_path)
    work = Work(run, failures=STARTS)
    assert await outliving_engines(run, work, faults("no learner is alive"), work.start) == "weights"
    assert work.starts == STARTS


async def test_engines_that_die_time_and_again_end_the_run(tmp_path):
    run = make_run(tmp_path)
    work = Work(run, failures=99)
    with pytest.raises(RuntimeError, match="rank 0 died"):
        await outliving_engines(run, work, faults("no learner is alive"), work.start)
    assert work.starts == STARTS


async def test_a_step_that_ends_gives_new_starts(tmp_path):
    run = make_run(tmp_path)
    work = Work(run, failures=2 * STARTS, progress=[STARTS + 1])
    assert await outliving_engines(run, work, faults("replica 0 is not alive"), work.start) == "weights"


@pytest.mark.parametrize(
    ("error", "found"),
    [(RuntimeError, []), (ValueError, ["no learner is alive"]), (FidelityError, ["replica 0 is not alive"])],
)
async def test_what_no_engine_is_at_fault_for_ends_the_run(tmp_path, error, found):
    run = make_run(tmp_path)
    work = Work(run, failures=1, error=error)
    with pytest.raises(error, match="rank 0 died"):
        await outliving_engines(run, work, faults(*found), work.start)
    assert work.starts == 0


async def test_a_cluster_that_is_gone_is_none_that_can_be_asked(tmp_path):
    async def gone():
        raise ConnectionError("no cluster")

    run = make_run(tmp_path)
    work = Work(run, failures=1)
    with pytest.raises(RuntimeError, match="rank 0 died"):
        await outliving_engines(run, work, gone, work.start)
