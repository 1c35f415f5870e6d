"""`testgrad plan`: what a run would come to on clusters of several sizes, in each mode, before any is rented."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from flows.commands.errors import clear_errors
from flows.environment import default_root

if TYPE_CHECKING:
    from flows.config import RunConfig
    from flows.plan.profile import Profile
    from flows.plan.sweep import Plan

console = Console()


def plan(
    config: Annotated[Path, typer.Argument(help="A run config: tasks and attempts a step, trials at once, replicas")],
    root: Annotated[
        Path, typer.Option("--root", help="Where runs, models and pools are kept", default_factory=default_root)
    ],
    from_: Annotated[
        str | None,
        typer.Option("--from", help="project/experiment whose journal is measured; CONFIG's own run if unset"),
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="YAML file of stated figures, where no run is measured")] = None,
    nodes: Annotated[list[int] | None, typer.Option(min=1, help="Size of a cluster; may be repeated [1 2 4 8]")] = None,
    mode: Annotated[list[str] | None, typer.Option(help="sync, one_step_off, async; may be repeated [all]")] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Price of a node for an hour")] = None,
    budget: Annotated[float | None, typer.Option(min=0, help="What an hour may cost; bounds the sizes")] = None,
    replicas_per_node: Annotated[
        float | None, typer.Option(min=0.001, help="Replicas on a rollout node; serving.replicas if unset")
    ] = None,
    max_staleness: Annotated[int, typer.Option(min=0, help="Weight versions that a token may be old, in async")] = 1,
    scaling: Annotated[
        float,
        typer.Option(min=0, max=1, help="Exponent by which nodes make updates faster; 1: twice as many, half"),
    ] = 0.9,
    replica_mtbf: Annotated[
        float | None, typer.Option(min=0.01, help="Mean hours until a replica dies; they never do if unset")
    ] = None,
    steps: Annotated[int, typer.Option(min=2, help="Steps to simulate of each layout")] = 16,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="HTML page with plots to write")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: section.key=value; may be repeated")
    ] = None,
) -> None:
    """Simulate a run on clusters: step time, tokens/s, idle shares, staleness, cost, and the best split of nodes.

    Figures come from the journal of a run, or are stated in a file. Nothing is started.
    """
    with clear_errors():
        from flows.config import load_config
        from flows.plan.sweep import Question, sweep, workload_of

        loaded = load_config(config, set_ or [])
        profile = _profile(loaded, root.resolve(), from_, figures)
        workload = workload_of(
            loaded,
            replicas_per_node=replicas_per_node,
            max_staleness=max_staleness,
            scaling=scaling,
            replica_mtbf_hours=replica_mtbf,
        )
        question = Question(_modes(mode), nodes or [1, 2, 4, 8], price, budget, steps)
        with _progress() as progress:
            found = sweep(profile, workload, question, one_machine=not loaded.learner.gpus_per_rank, progress=progress)
        if output is not None:
            _write(output, found, f"{loaded.project}/{loaded.experiment}")
    if as_json:
        from flows.plan.page import to_json

        typer.echo(json.dumps(to_json(found), indent=2))
        return
    _print(found)
    if output is not None:
        console.print(f"page       {output}", markup=False, highlight=False, soft_wrap=True)


def _profile(config: "RunConfig", root: Path, run: str | None, figures: Path | None) -> "Profile":
    from flows.plan.measure import measure
    from flows.plan.profile import PlanError
    from flows.plan.stated import read_stated

    if figures is None:
        return measure(root, run or f"{config.project}/{config.experiment}")
    if run is not None:
        raise PlanError(f"--from {run} and --figures {figures}: take one of the two")
    return read_stated(figures)


def _modes(names: list[str] | None) -> list[Any]:
    from flows.plan.layout import MODES
    from flows.plan.profile import PlanError

    unknown = [name for name in names or () if name not in MODES]
    if unknown:
        raise PlanError(f"--mode {unknown[0]}: no such mode; known are {', '.join(MODES)}")
    return [mode for mode in MODES if mode in (names or MODES)]


def _write(path: Path, plan: "Plan", name: str) -> None:
    from flows.plan.page import render_plan
    from tasks.journal import write_text

    write_text(path, render_plan(plan, f"A plan for {name}"))


def _print(plan: "Plan") -> None:
    from flows.plan.page import COLUMNS, SHOWN, row

    console.print(f"figures of {plan.source}", markup=False, highlight=False, soft_wrap=True)
    table = Table(box=None, header_style="bold")
    for column in SHOWN:
        table.add_column(column, justify="left" if column == "mode" else "right")
    for found in plan.best_splits:
        cells = dict(zip(COLUMNS, row(found), strict=True))
        table.add_row(*(cells[column] for column in SHOWN), style="bold green" if found is plan.fastest else None)
    console.print(table)
    hidden = len(plan.forecasts) - len(plan.best_splits)
    if hidden:
        console.print(f"the best split of each mode and size; {hidden} others are in --json and -o", highlight=False)
    for name, best in (("fastest", plan.fastest), ("cheapest", plan.cheapest)):
        text = f"{name:<10} {best.layout.mode}, {best.layout.split} nodes: {best.step_seconds:.4g} s a step"
        text += "" if best.cost is None else f", {best.cost:.2f} for 1,000 trials"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar of simulated layouts on stderr, for as long as the block lasts."""
    columns = (TextColumn("simulating layouts"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)
