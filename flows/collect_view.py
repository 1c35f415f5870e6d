"""A collection as people see it: a bar with what became of the trials so far, and the rates at the end."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from flows.printable import printable
from harness.pool.difficulty import LABELS
from tasks.progress import Event, watching

_LINES = 10
"""Lines of progress in a log, where no bar can be."""


@contextmanager
def collect_bar(console: Console) -> Iterator[None]:
    """Show how far a collection is: a bar on a terminal, else a line for each tenth of it."""
    if not console.is_terminal:
        told = -1

        def line(event: Event) -> None:
            nonlocal told
            if event.kind == "note":
                _say(console, printable(event.text))
            elif event.kind == "collect" and event.total:
                tenth = _LINES * event.done // event.total
                if tenth != told:
                    told = tenth
                    _say(console, f"{event.done} of {event.total} trials: {_counts(event.data)}")

        with watching(line):
            yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[counts]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bars:
        bar = None

        def show(event: Event) -> None:
            nonlocal bar
            if event.kind == "note":
                bars.console.print(Text(printable(event.text), "dim"), soft_wrap=True)
            elif event.kind == "collect":
                if bar is None:
                    bar = bars.add_task("trials", total=event.total, counts="")
                bars.update(bar, completed=event.done, total=event.total, counts=_counts(event.data))

        with watching(show):
            yield


def print_collection(console: Console, record: Mapping[str, Any]) -> None:
    """Tasks by band, how much of what was wanted there is, and where the files are."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("pass rate")
    table.add_column("tasks", justify="right")
    table.add_column("")
    most = max(record["bands"].values(), default=0)
    for name in LABELS:
        count = record["bands"][name]
        table.add_row(name, str(count), "█" * max(round(40 * count / most), bool(count)) if most else "")
    unmeasured = record["tasks"] - record["measured"]
    table.add_row("unmeasured", str(unmeasured), "")
    console.print(table)
    rate = record["mean_pass_rate"]
    _say(
        console,
        f"{record['solved']} of {record['trials']} trials solved their task"
        + (f"; mean pass rate {rate:.3f} over {record['measured']} tasks" if rate is not None else "")
        + f"; {record['mixed']} tasks are solved sometimes",
    )
    if record["done"]["stopped"]:
        why = printable(record["done"]["stopped"])
        console.print(Text(f"stopped: {why}; mend the machine first", "bold red"), soft_wrap=True)
    if record["coverage"] < 1:
        reasons = "; ".join(f"{count} × {printable(reason)}" for reason, count in list(record["reasons"].items())[:3])
        short = f"{record['wanted'] - record['counted']} of {record['wanted']} trials do not count"
        text = f"{short}: {reasons or 'not made'}. They are no failures; the same command makes them again"
        console.print(Text(text, "yellow"), soft_wrap=True)
    _say(console, f"rates      {record['folder']}/rates.parquet")
    _say(console, f"report     {record['report']}")


def _counts(data: Mapping[str, Any]) -> str:
    text = f"{data['passed']} solved, {data['failed']} failed"
    return text + (f", {data['lost']} lost" if data["lost"] else "")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
