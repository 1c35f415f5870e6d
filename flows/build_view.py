"""A build as people see it: a bar for each package while it runs, and at the end what came of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from harness.pool.builder import PackageResult
from tasks.progress import Event, watching

_STAGES = {"source": "fetching", "suite": "running its suite", "syntax": "reading its files"}


@contextmanager
def build_bars(console: Console, labels: Sequence[str], wanted: int) -> Iterator[None]:
    """Show bars on a terminal, else a line for each package that is done."""
    if not console.is_terminal:
        with watching(lambda event: _line(console, event)):
            yield
        return
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[stage]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bars:
        known = {label: bars.add_task(label, total=wanted, stage="waiting") for label in labels}

        def show(event: Event) -> None:
            if event.kind == "build" and event.label in known:
                tried = event.data.get("tried", 0)
                stage = event.data.get("problem") or _STAGES.get(event.text) or f"{tried} bugs tried"
                stage = "done" if event.text == "done" and not event.data.get("problem") else stage[:60]
                bars.update(known[event.label], completed=event.done, stage=Text(stage).plain)

        with watching(show):
            yield


def _line(console: Console, event: Event) -> None:
    if event.kind == "build" and event.text == "done":
        told = _problem(event.label, event.data.get("problem") or f"{event.done} tasks")
        console.print(told, markup=False, highlight=False, soft_wrap=True)


def _problem(label: str, text: str) -> str:
    return f"{label}: {text.removeprefix(f'{label}: ')}"


def print_build(console: Console, results: Sequence[PackageResult]) -> None:
    """What came of each package, and of all."""
    console.print(build_table(results))
    for result in results:
        if result.problem:
            told = _problem(result.label, result.problem)
            console.print(told, markup=False, highlight=False, soft_wrap=True)
        for entry in result.quarantined[:3]:
            console.print(f"{entry['task']}: {entry['reason']}", markup=False, highlight=False, soft_wrap=True)


def build_table(results: Sequence[PackageResult]) -> Table:
    """Bugs tried, tasks admitted, why others were not, and seconds a task."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, justify in (
        *(("package", "left"), ("tests", "right"), ("left out", "right"), ("candidates", "right")),
        *(("admitted", "right"), ("others", "left"), ("kinds", "right"), ("s a task", "right")),
    ):
        table.add_column(name, justify="right" if justify == "right" else "left")
    total = Counter[str]()
    for result in results:
        total.update(result.reasons)
        kinds = {facts["extra"]["bug"] for facts in result.tasks}
        table.add_row(
            Text(result.label), str(result.tests), str(len(result.tests_quarantined)), str(result.candidates),
            str(len(result.tasks)), reasons_text(result.reasons), str(len(kinds)), _each(result),
        )  # fmt: skip
    if len(results) > 1:
        bugs = {facts["extra"]["bug"] for result in results for facts in result.tasks}
        table.add_row(
            "all", str(sum(r.tests for r in results)), str(sum(len(r.tests_quarantined) for r in results)),
            str(sum(r.candidates for r in results)), str(sum(len(r.tasks) for r in results)), reasons_text(total),
            str(len(bugs)), "",
        )  # fmt: skip
    return table


def reasons_text(reasons: dict[str, int]) -> str:
    """Reasons with their counts, the most frequent first."""
    return ", ".join(f"{name} {count}" for name, count in Counter(reasons).most_common() if count)


def _each(result: PackageResult) -> str:
    return f"{result.seconds / len(result.tasks):.1f}" if result.tasks else "-"
