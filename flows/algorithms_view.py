"""What `testgrad algorithms` prints: every registered function, what it computes, its settings and its source."""

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import (
    ADVANTAGE_ESTIMATORS,
    KL_ESTIMATORS,
    LOSS_AGGREGATIONS,
    POLICY_LOSSES,
    Registry,
    load_builtin,
)

_SECTIONS = (
    ("Advantage estimators", "algorithm.adv_estimator", ADVANTAGE_ESTIMATORS),
    ("Policy losses", "algorithm.policy_loss", POLICY_LOSSES),
    ("Loss aggregation", "algorithm.loss_agg", LOSS_AGGREGATIONS),
    ("KL estimators", "algorithm.kl.estimator", KL_ESTIMATORS),
)


def print_algorithms(console: Console) -> None:
    """A table for each registry."""
    load_builtin()
    defaults = {
        "algorithm.adv_estimator": AlgorithmConfig().adv_estimator,
        "algorithm.policy_loss": AlgorithmConfig().policy_loss,
        "algorithm.loss_agg": AlgorithmConfig().loss_agg,
        "algorithm.kl.estimator": AlgorithmConfig().kl.estimator,
    }
    for title, setting, registry in _SECTIONS:
        console.print(_table(title, setting, registry, defaults[setting]))


def _table(title: str, setting: str, registry: Registry, default: str) -> RenderableType:
    table = Table(
        title=f"{title} ({setting})", title_justify="left", box=None, header_style="bold", padding=(0, 2, 0, 0)
    )
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("what it computes", ratio=3)
    table.add_column("settings", ratio=2)
    table.add_column("source", ratio=1)
    for name in sorted(registry):
        entry = registry[name]
        marked = f"{name} (default)" if name == default else name
        # Text, not str: a formula's brackets are no markup
        table.add_row(marked, Text(entry.summary), Text(", ".join(entry.settings) or "-"), Text(entry.source or "-"))
    return Group(table, "")
