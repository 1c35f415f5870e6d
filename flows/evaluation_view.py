"""An evaluation as tables: scores with their coverage beside them, parts of the pool, how the trials ended."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.outcome_table import INFRASTRUCTURE

LOW_COVERAGE = 0.95
"""Share of tasks below which a score is told to speak of some of them only."""

_SHOWN_PARTS = 30
_VERDICTS = {
    "failed": "a test failed",
    "broken": "the tests did not run to their end",
    "tampered": "the report was bent",
}


def print_scores(console: Console, record: Mapping[str, Any]) -> None:
    """pass@1 and pass@k, each with its interval and the tasks that it speaks of."""
    table = _table("", "", "95 %", "scored of tasks", "")
    for k, rate in _by_k(record["pass_at"]):
        notes = "first attempts only" if k == 1 else "unbiased"
        if rate["clusters"] < rate["scored"]:
            notes += f"; {rate['clusters']} groups of related tasks"
        table.add_row(f"pass@{k}", f"{rate['value']:.3f}", _interval(rate), _coverage(rate), notes)
    console.print(table)
    first = record["pass_at"].get("1")
    if first is None or first["coverage"] < LOW_COVERAGE:
        scored = first["scored"] if first else 0
        console.print(
            Text(
                f"coverage is low: {scored} of {record['tasks']} tasks have a scored first attempt, and the score "
                "speaks of these alone; see what infrastructure spoiled below",
                "yellow",
            ),
            soft_wrap=True,
        )


def print_parts(console: Console, record: Mapping[str, Any]) -> None:
    """pass@1 by repository and by difficulty, where there is more than one; largest parts first."""
    for name, parts in record["parts"].items():
        if not parts:
            continue
        table = _table(f"by {name}", "pass@1", "95 %", "scored of tasks")
        largest = sorted(parts.items(), key=lambda item: -item[1]["tasks"])
        for part, numbers in largest[:_SHOWN_PARTS]:
            rate = numbers["pass_at"].get("1")
            if rate is None:
                table.add_row(Text(part), "–", "", f"0 of {numbers['tasks']}")
            else:
                table.add_row(Text(part), f"{rate['value']:.3f}", _interval(rate), _coverage(rate))
        if len(largest) > _SHOWN_PARTS:
            table.add_row(Text(f"and {len(largest) - _SHOWN_PARTS} more, in record.json", "dim"), "", "", "")
        console.print(table)


def print_outcomes(console: Console, record: Mapping[str, Any]) -> None:
    """How all trials ended: what the policy did, and apart from it what infrastructure did."""
    outcomes, launched = record["outcomes"], record["launched"]
    table = _table("trials", "", "of launched", "")
    solved = sum(outcomes["solved"].values())
    failed = sum(sum(counts.values()) for counts in outcomes["policy"].values())
    spoiled = sum(outcomes["infrastructure"].values())

    def add(name: str, count: int, note: str = "", style: str = "") -> None:
        table.add_row(Text(name, style), str(count), f"{count / launched:.1%}" if launched else "", Text(note, "dim"))

    add("solved", solved, style="bold")
    add("failed by the policy", failed, style="bold")
    for status, counts in sorted(outcomes["policy"].items()):
        ended = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        add(f"  {status}", sum(counts.values()), f"{_VERDICTS.get(status, '')}; the trials ended as: {ended}")
    add("not scored: infrastructure", spoiled, style="bold")
    for reason, count in sorted(outcomes["infrastructure"].items()):
        add(f"  {reason}", count, INFRASTRUCTURE.get(reason, ""))
    console.print(table)


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="left" if column == columns[-1] and not column else "right")
    return table


def _by_k(pass_at: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    return sorted((int(k), rate) for k, rate in pass_at.items())


def _interval(rate: Mapping[str, Any]) -> str:
    return f"{rate['low']:.3f} to {rate['high']:.3f}"


def _coverage(rate: Mapping[str, Any]) -> str:
    return f"{rate['scored']} of {rate['tasks']}"
