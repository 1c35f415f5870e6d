"""What `testgrad algorithms` prints: every registered function, what it computes, its settings and its source."""

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import (
    ADVANTAGE_ESTIMATORS,
    KL_ESTIMATORS,
    LOSS_AGGREGATIONS,
    POLICY_LOSSES,
    Entry,
    load_builtin,
)


def print_algorithms(console: Console) -> None:
    """One section for each registry, one entry for each function."""
    load_builtin()
    defaults = AlgorithmConfig()
    for title, setting, registry, default in (
        ("Advantage estimators", "adv_estimator", ADVANTAGE_ESTIMATORS, defaults.adv_estimator),
        ("Policy losses", "policy_loss", POLICY_LOSSES, defaults.policy_loss),
        ("Loss aggregation", "loss_agg", LOSS_AGGREGATIONS, defaults.loss_agg),
        ("KL estimators", "kl.estimator", KL_ESTIMATORS, defaults.kl.estimator),
    ):
        console.print(f"[bold]{title}[/bold]  algorithm.{setting}", highlight=False)
        for name in sorted(registry):
            _print_entry(console, registry[name], name == default)
        console.print()


def _print_entry(console: Console, entry: Entry, is_default: bool) -> None:
    # Text, not markup: the brackets of a formula are meant
    line = Text.assemble((entry.name, "bold green"), " (default)  " if is_default else "  ", entry.summary)
    details = [f"settings {', '.join(entry.settings)}" if entry.settings else "", entry.source]
    console.print(Padding(line, (0, 0, 0, 2)), highlight=False)
    text = " · ".join(detail for detail in details if detail)
    if text:
        console.print(Padding(Text(text, style="dim"), (0, 0, 0, 6)), highlight=False)
