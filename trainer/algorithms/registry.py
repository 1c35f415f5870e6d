"""Plain dicts of algorithms, filled by a decorator; a user's module, named in a config's `plugins`, adds to them."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

ADVANTAGE_ESTIMATORS: dict[str, Callable[..., Any]] = {}
POLICY_LOSSES: dict[str, Callable[..., Any]] = {}


def register(registry: dict[str, Callable[..., Any]], name: str) -> Callable[[F], F]:
    """Enter the decorated function into `registry`.

    Raises:
        ValueError: the name is taken.
    """

    def enter(function: F) -> F:
        if name in registry:
            raise ValueError(f"{name!r} is registered already, by {registry[name].__module__}")
        registry[name] = function
        return function

    return enter


def load_builtin() -> None:
    """Import the modules that register themselves."""
    import trainer.algorithms.advantages.grpo
    import trainer.algorithms.policy_losses.gspo
    import trainer.algorithms.policy_losses.ppo  # noqa: F401
