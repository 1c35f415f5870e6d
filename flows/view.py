"""What a person sees while a run goes on: a table of steps, a bar for the trials of the present one."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tasks.progress import Event, watching

_SHOWN_STEPS = 25


class RunView:
    """Collects events and renders them; a terminal shows it live, a log file gets a line a step."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._steps: list[tuple[int, dict[str, float]]] = []
        self._started = time.monotonic()
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[extra]}"),
            TimeElapsedColumn(),
        )
        self._bars: dict[str, Any] = {}
        self._ahead: Any = None
        self._label = ""

    @contextmanager
    def live(self) -> Iterator[None]:
        """Watch events inside the block."""
        if not self.console.is_terminal:
            with watching(self._print):
                yield
            return
        with (
            Live(get_renderable=self._render, console=self.console, refresh_per_second=4, transient=False) as live,
            watching(self._update),
        ):
            try:
                yield
            finally:
                self._hide_bar()
                live.refresh()

    def _print(self, event: Event) -> None:
        lines = {
            "note": lambda: event.text,
            "step": lambda: step_summary(event.done, event.data),
            "eval": lambda: eval_summary(event.data),
        }
        if event.kind in lines:
            text = f"[{self._clock()}] {lines[event.kind]()}"
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)  # a log has one line an event

    def _update(self, event: Event) -> None:
        if event.kind == "note":
            self.console.print(f"[dim]{self._clock()}[/dim] {escape(event.text)}", highlight=False)
        elif event.kind == "stage":
            self._show_bar(event.label, event.text)
        elif event.kind == "trials":
            self._advance(event.label, event.done, event.total)
        elif event.kind == "rollouts":
            self._show_ahead(event)
        elif event.kind == "step":
            self._steps.append((event.done, event.data))
            self._hide_bar()
        elif event.kind == "eval":
            self.console.print(f"[dim]{self._clock()}[/dim] [bold]{eval_summary(event.data)}[/bold]", highlight=False)
            self._hide_bar()

    def _show_bar(self, label: str, stage: str) -> None:
        name = label.removeprefix("eval_").replace("_0", " 0").replace("step ", "step ").lstrip()
        description = f"{'evaluation after ' if label.startswith('eval_') else ''}{_step_name(name)}: {stage}"
        if label not in self._bars:
            self._hide_bar()
            self._bars[label] = self._bar.add_task(description, total=None, extra="")
        self._bar.update(self._bars[label], description=description)

    def _advance(self, label: str, done: int, total: int) -> None:
        if label in self._bars:
            self._bar.update(self._bars[label], completed=done, total=total, extra="trials")

    def _show_ahead(self, event: Event) -> None:
        """The rollouter's own bar stays, whatever steps do: groups that are complete, of all that the run takes."""
        if self._ahead is None:
            self._ahead = self._bar.add_task("rollouter", total=event.total, extra="")
        extra = f"groups, {event.data['running']} running"
        self._bar.update(self._ahead, completed=event.done, total=event.total, extra=extra)

    def _hide_bar(self) -> None:
        for bar in self._bars.values():
            self._bar.remove_task(bar)
        self._bars.clear()

    def _render(self) -> Group:
        return Group(steps_table(self._steps[-_SHOWN_STEPS:]), self._bar) if self._steps else Group(self._bar)

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self._started)
        return f"{seconds // 60:2d}:{seconds % 60:02d}"


def steps_table(steps: list[tuple[int, dict[str, float]]]) -> Table:
    """A row a step."""
    table = Table(header_style="bold", box=None, padding=(0, 1, 0, 0))  # 80 columns in all
    for column in (
        "step",
        "score",
        "signal",
        "length",
        "pearson",
        "entropy",
        "grad",
        "trials s",
        "update s",
        "sync s",
        "step s",
    ):
        table.add_column(column, justify="right")
    for step, m in steps:
        table.add_row(
            str(step),
            f"{m.get('critic/score/mean', math.nan):.2f}",
            f"{m.get('batch/groups_with_signal', 0):.0f}/{m.get('batch/groups', 0):.0f}",
            f"{m.get('response_length/mean', math.nan):.0f}",
            _pearson(m),
            f"{m.get('actor/entropy', math.nan):.2f}",
            f"{m.get('actor/grad_norm', math.nan):.2f}",
            *(
                f"{m.get(f'timing_s/{name}', math.nan):.1f}"
                for name in ("gen", "update_actor", "update_weights", "step")
            ),
        )
    return table


def step_summary(step: int, m: dict[str, float]) -> str:
    """One line for a log."""
    return (
        f"step {step}: score {m.get('critic/score/mean', math.nan):.2f}, "
        f"signal {m.get('batch/groups_with_signal', 0):.0f}/{m.get('batch/groups', 0):.0f} groups, "
        f"length {m.get('response_length/mean', math.nan):.0f}, pearson {_pearson(m)}, "
        f"trials {m.get('timing_s/gen', math.nan):.1f} s, update {m.get('timing_s/update_actor', math.nan):.1f} s, "
        f"sync {m.get('timing_s/update_weights', math.nan):.1f} s, step {m.get('timing_s/step', math.nan):.1f} s"
    )


def eval_summary(record: dict[str, Any]) -> str:
    """One line on an evaluation."""
    return (
        f"held-out score after step {record['step']}: {record['mean_reward']:.3f} "
        f"({record['scored']} trials of {record['tasks']} tasks, {len(record['clusters'])} functions)"
    )


def _step_name(label: str) -> str:
    digits = "".join(c for c in label if c.isdigit())
    return f"step {int(digits)}" if digits else label


def _pearson(metrics: dict[str, float]) -> str:
    value = metrics.get("training/rollout_actor_probs_pearson_corr")
    return f"{value:.4f}" if value is not None and math.isfinite(value) else "-"
