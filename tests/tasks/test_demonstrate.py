"""Demonstrations as a stage: what infrastructure broke is lost, but never all of it."""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from support.journals import make_result, make_run
from support.tasks import write_task

from harness.budgets import BudgetConfig
from harness.pool.index import TaskPointer
from harness.sandbox import SandboxConfig
from harness.scaffolds.base import ScaffoldConfig
from tasks import demonstrate as module
from tasks.demonstrate import LABEL, DemonstrationsLost, run_demonstrations
from tasks.draw import as_groups, groups_path, groups_table
from tasks.journal import write_table
from trainer.rollout import Outcome


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with three demonstrations to make; proxy and sandboxes are away."""

    @asynccontextmanager
    async def nothing(*args, **options):
        yield None

    for name, value in {"ProxyServer": nothing, "reaping": nothing, "codec_of": lambda model: None,
                        "demonstrate": lambda task, scaffold: ["so"]}.items():  # fmt: skip
        monkeypatch.setattr(module, name, value)
    run = make_run(tmp_path)
    tasks = [TaskPointer(name, write_task(tmp_path / "pool" / name)) for name in "abc"]
    write_table(groups_path(run.journal.stage_dir(LABEL)), groups_table(as_groups(tasks, LABEL, attempts=1)))
    return run


async def made(run, monkeypatch, lost):
    """The outcomes of a call in which the sandboxes of the tasks `lost` break."""
    tried = []

    async def run_trial(spec, *args):
        tried.append(spec.task_id)
        broken = {"outcome": Outcome.INFRA_ERROR, "error": "SandboxError: no disk"} if spec.task_id in lost else {}
        return replace(make_result(spec.session_id, spec.group_id), spec=spec, **broken)

    monkeypatch.setattr(module, "run_trial", run_trial)
    outcomes = await run_demonstrations.fn(
        run, LABEL, run.root, 512, 512, SandboxConfig(), ScaffoldConfig(), BudgetConfig(), 2, 1
    )
    return outcomes, sorted(tried)


async def test_a_machine_that_breaks_all_of_them_has_made_none(run, monkeypatch):
    with pytest.raises(DemonstrationsLost, match=r"all 3 demonstrations were lost .*: SandboxError: no disk"):
        await made(run, monkeypatch, lost="abc")
    assert not run.journal.trials(LABEL)
    assert await made(run, monkeypatch, lost="b") == ({"completed": 2, "infra_error": 1}, ["a", "b", "c"])
    assert len(run.journal.trials(LABEL)) == 3
    assert (await made(run, monkeypatch, lost=""))[1] == [], "what has ended is not made again"
