"""What a demonstrator is, and which scaffolds have one."""

from collections.abc import Callable

from harness.pool.task import Task
from harness.scaffolds.base import ScaffoldConfig, find_scaffold

Demonstrator = Callable[[Task, ScaffoldConfig], list[str]]
"""`(task, config) -> answers`, in the order in which the scaffold will ask for them."""

DEMONSTRATORS: dict[str, Demonstrator] = {}


class DemonstrationError(ValueError):
    """A fix that cannot be said in the format of a scaffold, or a scaffold without demonstrations."""


def register_demonstrator(scaffold: str) -> Callable[[Demonstrator], Demonstrator]:
    """Decorator: make a function the demonstrator of a scaffold.

    Raises:
        DemonstrationError: the scaffold has one.
    """

    def register(demonstrator: Demonstrator) -> Demonstrator:
        if scaffold in DEMONSTRATORS:
            raise DemonstrationError(f"scaffold {scaffold!r} has a demonstrator, {DEMONSTRATORS[scaffold].__module__}")
        DEMONSTRATORS[scaffold] = demonstrator
        return demonstrator

    return register


def find_demonstrator(scaffold: str) -> Demonstrator:
    """The demonstrator of a scaffold.

    Raises:
        ScaffoldError: there is no such scaffold.
        DemonstrationError: it has none.
    """
    find_scaffold(scaffold)
    if scaffold not in DEMONSTRATORS:
        raise DemonstrationError(
            f"scaffold.name is {scaffold!r}, which has no demonstrations; {', '.join(sorted(DEMONSTRATORS))} has. "
            "Learn from accepted trials of it instead, or register a demonstrator of your own in a plugin"
        )
    return DEMONSTRATORS[scaffold]


def demonstrate(task: Task, config: ScaffoldConfig) -> list[str]:
    """The answers that make the known fix of `task`.

    Raises:
        DemonstrationError: the task ships no fix, or none that this scaffold can make.
    """
    return find_demonstrator(config.name)(task, config)
