"""A warm start as people see it: a bar for its demonstrations, one for its steps, and at the end what came of it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tasks.progress import Event, watching

_DEMONSTRATIONS = "demonstrations"
_STEPS = "steps"
_LINES = 20
"""Lines of a log without a terminal, about; measures of the loss have one each besides."""


@contextmanager
def warm_start_bars(console: Console) -> Iterator[None]:
    """Show bars on a terminal, else lines."""
    if not console.is_terminal:
        with watching(_Log(console).show):
            yield
        return
    columns = ("{task.description}", BarColumn(30), MofNCompleteColumn(), TextColumn("{task.fields[told]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bars, watching(_Bars(bars).show):
        yield


def print_warm_start(console: Console, summary: dict[str, Any]) -> None:
    """The losses by step, and where the model is."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("after step", "train loss", "validation loss"):
        table.add_column(column, justify="right")
    shown = summary["val_loss"] or {summary["steps"]: math.nan}
    for step in shown:
        table.add_row(str(step), _number(summary["train_loss"], step), _number(summary["val_loss"], step))
    console.print(table)
    console.print(f"model      {summary['model']}", highlight=False, markup=False, soft_wrap=True)
    for command, meaning in (
        (f"testgrad eval {summary['model']}", "score it on held-out tasks, as it was scored before"),
        (f"testgrad train CONFIG --set model.path={summary['model']}", "reinforcement learning from here on"),
    ):
        console.print(f"  {escape(command)}\n      [dim]{meaning}[/dim]", highlight=False, soft_wrap=True)


def _number(losses: dict[str, float], step: Any) -> str:
    return f"{losses[str(step)]:.4f}" if str(step) in losses else "-"


def _losses(metrics: dict[str, float]) -> str:
    named = (("train/loss", "loss"), ("val/loss", "validation loss"))
    return ", ".join(f"{name} {metrics[key]:.4f}" for key, name in named if key in metrics)


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._known: dict[str, TaskID] = {}
        self._validated = ""

    def show(self, event: Event) -> None:
        if event.kind == "note":
            self._bars.console.print(f"[dim]{escape(event.text)}[/dim]", highlight=False)
        elif event.kind in ("trials", "verdicts") and event.label == _DEMONSTRATIONS:
            # a demonstration is done when it is graded
            told = ", ".join(f"{status} {count}" for status, count in event.data.items())
            done = event.done if event.kind == "verdicts" else None
            self._update(_DEMONSTRATIONS, done, event.total, told or None)
        elif event.kind == "supervised_run":
            self._update(_STEPS, 0, event.total, "")
        elif event.kind == "supervised_step":
            if "val/loss" in event.data:
                self._validated = f"validation {event.data['val/loss']:.4f}"
            loss = f"loss {event.data['train/loss']:.4f}" if "train/loss" in event.data else ""
            self._update(_STEPS, event.done, None, f"{loss} {self._validated}".strip())

    def _update(self, name: str, done: int | None, total: int | None, told: str | None) -> None:
        if name not in self._known:
            self._known[name] = self._bars.add_task(name, total=total, told="")
        changes: dict[str, Any] = {} if told is None else {"told": told}
        self._bars.update(self._known[name], completed=done, **changes)


class _Log:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._every = 1

    def show(self, event: Event) -> None:
        if event.kind == "note":
            self._say(event.text)
        elif event.kind == "verdicts" and event.done == event.total:
            self._say(f"demonstrations: {', '.join(f'{status} {count}' for status, count in event.data.items())}")
        elif event.kind == "supervised_run":
            self._every = max(event.total // _LINES, 1)
        elif event.kind == "supervised_step" and (event.done % self._every == 0 or "val/loss" in event.data):
            self._say(f"step {event.done}: {_losses(event.data)}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
