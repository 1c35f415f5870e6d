"""Attacks as hostile trials on every backend and by every way of grading; none may get what it wants.

One of each kind, in the embedded sandbox; `TESTGRAD_ALL_ATTACKS=1`, and `python -m bench.attacks`, run them all.
"""

import asyncio
import collections
import os
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from support.attack_tables.table import ATTACKS, HONEST
from support.attack_task import RIGHT, grading_kinds, write_attacked
from support.attacks import Attack, Honest, attempt, backend, py, solve, unproven
from support.witness import Witness

from harness.pool.task import Task
from harness.sandbox import SandboxConfig

TaskOf = Callable[[str, bool], Task]


@pytest_asyncio.fixture(params=[pytest.param("docker", marks=pytest.mark.docker), "bubblewrap", "kubernetes"])
async def config(request: pytest.FixtureRequest) -> AsyncIterator[SandboxConfig]:
    """Each backend that runs here; the tests of the others are skipped with the reason."""
    async with backend(request.param) as found:
        yield found


@pytest.fixture(scope="session")
def task_of(tmp_path_factory: pytest.TempPathFactory) -> TaskOf:
    """The attacked task by (grading kind, with git history), made once."""
    made: dict[tuple[str, bool], Task] = {}

    def task(report: str, history: bool) -> Task:
        if (report, history) not in made:
            folder = tmp_path_factory.mktemp("attacked") / f"{report}-{history}"
            made[report, history] = write_attacked(folder, report, history)
        return made[report, history]

    return task


ALL = bool(os.environ.get("TESTGRAD_ALL_ATTACKS"))
FIRST_OF_KIND = [*{attack.kind: attack for attack in reversed(ATTACKS)}.values()]
ON_KUBERNETES = {"closed_rights", "daemon_in_a_session_of_its_own", "other_ports_of_the_proxys_way"}
"""Tried each time, since what they attack is the backend's own code."""

CASES = [
    pytest.param(attack, report, id=f"{attack.name}-{report}")
    for attack in ATTACKS
    if ALL or attack in FIRST_OF_KIND or attack.name in ON_KUBERNETES
    for report in attack.reports
    if report in grading_kinds()
]


@pytest.mark.parametrize(("attack", "report"), CASES)
async def test_the_attack_gets_nothing(config: SandboxConfig, task_of: TaskOf, attack: Attack, report: str) -> None:
    if reason := unproven(attack, config.backend):
        pytest.skip(reason)
    if not (config.backend == "kubernetes" and attack.name in ON_KUBERNETES and report == "unittest"):
        _leave_out_most(config)
    evidence = await attempt(attack, task_of(report, attack.history), config)
    assert not evidence.faults, f"the attack itself is wrong: {evidence}"
    assert not evidence.succeeded, evidence
    assert not evidence.misclassified, evidence


@pytest.mark.parametrize("report", grading_kinds())
@pytest.mark.parametrize("honest", HONEST if ALL else HONEST[::6], ids=str)
async def test_the_honest_solution_scores_one(
    config: SandboxConfig, task_of: TaskOf, honest: Honest, report: str
) -> None:
    _leave_out_most(config)
    evidence = await solve(honest, task_of(report, False), config)
    assert not evidence.misclassified and not evidence.faults, evidence
    assert evidence.verdict is not None and evidence.verdict.reward == 1.0, evidence


def _leave_out_most(config: SandboxConfig) -> None:
    """Grading is the same code on every backend, and a container is slow to start."""
    if not ALL and config.backend != "bubblewrap":
        pytest.skip("TESTGRAD_ALL_ATTACKS=1 runs it")


def test_the_suite_is_whole() -> None:
    repeated = [name for name, count in collections.Counter(a.name for a in ATTACKS).items() if count > 1]
    assert not repeated
    assert len(ATTACKS) >= 40 and len({a.kind for a in ATTACKS}) >= 16
    assert len(HONEST) >= 20


async def test_an_attack_that_works_is_seen(task_of: TaskOf) -> None:
    """The suite's own eyes: a reward, a breach and a touch of the host's witness all count as success."""
    task = task_of("unittest", False)
    async with backend("bubblewrap") as config:
        rewarded = await attempt(Attack("solves_it", "test", "x", files={"calc.py": RIGHT}), task, config)
        assert rewarded.succeeded and rewarded.misclassified
        breached = await attempt(Attack("breaches", "test", "x", commands=(py("breach('here')"),)), task, config)
        assert breached.succeeded
        broken = await attempt(Attack("is_wrong", "test", "x", commands=(py("1 / 0"),)), task, config)
        assert broken.faults and not broken.succeeded
    async with Witness.watching() as witness:
        _, writer = await asyncio.open_connection("127.0.0.1", witness.ports["OPEN_PORT"])
        writer.close()
        while not witness.touched:
            await asyncio.sleep(0.01)
