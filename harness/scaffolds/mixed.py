"""The scaffold `mixed`: several agents share the tasks, so that a policy learns none of them by heart."""

import hashlib
from typing import NoReturn

from harness.pool.task import Task
from harness.proxy.session import Session
from harness.sandbox.base import Sandbox
from harness.scaffolds.base import (
    MixedConfig,
    Scaffold,
    ScaffoldConfig,
    ScaffoldError,
    ScaffoldResult,
    find_scaffold,
    register_scaffold,
)

_NAME = "mixed"


@register_scaffold(_NAME)
class MixedScaffold(Scaffold):
    """Stands for the scaffold that a task gets: the same for all its trials in a step, and whenever a step is repeated.

    A task for which the pool's index names a scaffold always gets that one, if it has a weight here.
    """

    @classmethod
    def check(cls, config: ScaffoldConfig) -> None:
        mixed = config.mixed
        if not mixed.weights:
            raise ScaffoldError("scaffold.mixed.weights is empty; give shares by name, such as {edit: 1, cc: 3}")
        for name in mixed.weights:
            member(config, name)
        if mixed.evaluation is not None and mixed.evaluation not in mixed.weights:
            raise ScaffoldError(
                f"scaffold.mixed.evaluation is {mixed.evaluation!r}, which has no weight; choose one of "
                f"{', '.join(sorted(mixed.weights))}"
            )

    @classmethod
    def require(cls, config: ScaffoldConfig) -> None:
        for name in config.mixed.weights:
            find_scaffold(name).require(member(config, name))

    @classmethod
    def calls_tools(cls, config: ScaffoldConfig) -> bool:
        names = [name for name, weight in config.mixed.weights.items() if weight > 0]
        return any(find_scaffold(name).calls_tools(member(config, name)) for name in names)

    @classmethod
    def resolve(cls, config: ScaffoldConfig, *, step: int, task_id: str, named: str | None) -> ScaffoldConfig:
        cls.check(config)
        if named is not None and named not in config.mixed.weights:
            raise ScaffoldError(
                f"the index names scaffold {named!r} for task {task_id}, which has no weight; give it one in "
                "scaffold.mixed.weights (0 will do), or correct the index"
            )
        return member(config, named or pick(config.mixed, step=step, task_id=task_id))

    async def run(self, task: Task, sandbox: Sandbox, session: Session) -> ScaffoldResult:
        self._no_agent()

    def _no_agent(self) -> NoReturn:
        raise ScaffoldError("mixed is no agent itself; create_scaffold makes the one that it stands for")


def pick(mixed: MixedConfig, *, step: int, task_id: str) -> str:
    """The scaffold that draws the task in this step. Neither the order of the weights nor their unit matters."""
    digest = hashlib.sha256(f"{mixed.seed}/{step}/{task_id}".encode()).digest()
    point = int.from_bytes(digest[:8], "big") / 2**64 * sum(mixed.weights.values())
    shares = [(name, weight) for name, weight in sorted(mixed.weights.items()) if weight > 0]
    for name, weight in shares:
        point -= weight
        if point < 0:
            return name
    return shares[-1][0]


def member(config: ScaffoldConfig, name: str) -> ScaffoldConfig:
    """The settings of one of the mixed scaffolds: those beside `mixed`, with its own in their place.

    Raises:
        ScaffoldError: it is unknown, or its settings are wrong.
    """
    if name == _NAME:
        raise ScaffoldError("scaffold.mixed.weights names mixed itself; name the agents")
    scaffold = find_scaffold(name)
    own = config.mixed.settings.get(name, {})
    if "name" in own or "mixed" in own:
        raise ScaffoldError(f"scaffold.mixed.settings.{name} sets name or mixed; leave them out")
    shared = config.model_dump(exclude={"name", "mixed"}, exclude_unset=True)
    try:
        settled = ScaffoldConfig.model_validate({**shared, **own, "name": name})
    except ValueError as error:
        raise ScaffoldError(f"scaffold.mixed.settings.{name}: {error}") from error
    scaffold.check(settled)
    return settled


def for_evaluation(config: ScaffoldConfig) -> ScaffoldConfig:
    """`config` as evaluations use it: of one scaffold, where `mixed` pins one."""
    if config.name != _NAME or config.mixed.evaluation is None:
        return config
    MixedScaffold.check(config)
    return member(config, config.mixed.evaluation)
