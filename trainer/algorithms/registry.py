"""Plain dicts of algorithms, filled by a decorator; a user's module, named in a config's `plugins`, adds to them."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """A registered function and what a reader and the learner need to know of it.

    `settings` are the fields of `AlgorithmConfig` that it reads. `needs` are columns that the learner must compute
    before it can be called, of `values`, `old_logprobs`, `sum_pi_squared`, or `greedy_baseline`, a trial of its own.
    """

    name: str
    function: Callable[..., Any]
    source: str
    settings: tuple[str, ...]
    needs: frozenset[str]
    options: dict[str, Any]

    @property
    def summary(self) -> str:
        """First line of the function's docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]


Registry = dict[str, Entry]

ADVANTAGE_ESTIMATORS: Registry = {}
POLICY_LOSSES: Registry = {}
KL_ESTIMATORS: Registry = {}
LOSS_AGGREGATIONS: Registry = {}


def register(
    registry: Registry,
    name: str,
    *,
    source: str = "",
    settings: Iterable[str] = (),
    needs: Iterable[str] = (),
    **options: Any,
) -> Callable[[F], F]:
    """Enter the decorated function into `registry`.

    Raises:
        ValueError: the name is taken.
    """

    def enter(function: F) -> F:
        if name in registry:
            raise ValueError(f"{name!r} is registered already, by {registry[name].function.__module__}")
        registry[name] = Entry(name, function, source, tuple(settings), frozenset(needs), options)
        return function

    return enter


def load_builtin() -> None:
    """Import the modules that register themselves; safe to repeat."""
    from trainer.algorithms import advantages, policy_losses

    for package in (advantages, policy_losses):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    importlib.import_module("trainer.algorithms.aggregation")
    importlib.import_module("trainer.algorithms.kl")
