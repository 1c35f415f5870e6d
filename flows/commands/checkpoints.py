"""`testgrad export` and `testgrad prune`: the weights out of a run's checkpoints."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from flows.commands.errors import clear_errors
from flows.environment import default_root, prepare

console = Console()

Root = Annotated[
    Path, typer.Option("--root", help="Where runs, models and pools are kept", default_factory=default_root)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON")]


def export(
    run: Annotated[str, typer.Argument(help="project/experiment, or a checkpoint: …/checkpoints/global_step_N")],
    root: Root,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write")],
    step: Annotated[int | None, typer.Option(help="The checkpoint after this step; the newest if not given")] = None,
    adapters: Annotated[bool, typer.Option("--adapters", help="Only the adapters of a LoRA run, as peft has them")] = (
        False
    ),
    as_json: AsJson = False,
) -> None:
    """Turn a checkpoint into a Hugging Face folder that computes what the learner did: compared before it is written.

    Exit status 2 if keys, shapes, weights or log-probs differ.
    """
    prepare(root)
    from flows.checkpoints import find_checkpoint
    from trainer.learner.export import export_adapters, export_checkpoint, read_report

    with clear_errors():
        checkpoint = find_checkpoint(root.resolve(), run, step)
        if adapters:
            folder = export_adapters(checkpoint, output.resolve())
        else:
            with _bar(not as_json) as advance:
                folder = export_checkpoint(
                    checkpoint, output.resolve(), lambda done, total: advance(checkpoint.name, done, total)
                )
    report = read_report(folder)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder)} | (asdict(report) if report else {}), indent=2))
        return
    _say(f"wrote {folder}")
    if report is not None:
        _say(
            f"step {report.step}: {report.parameters:,} parameters in {report.tensors} tensors, keys and shapes as in "
            f"the base model; log-probs differ from the learner's by {report.mean_difference:.2g} nats in the mean, "
            f"{report.largest_difference:.2g} at most"
        )
        if report.carried_over:
            _say(f"{len(report.carried_over)} tensors are the base model's, since training never had them")


def prune(
    runs: Annotated[list[str], typer.Argument(help="project/experiment; several may be given")],
    root: Root,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be freed, and touch nothing")] = False,
    as_json: AsJson = False,
) -> None:
    """Free the optimizer state of finished runs: their weights are exported and verified, then checkpoints deleted.

    Weights go to RUN/exports/global_step_N, in Hugging Face format. Journal, trials and evaluations stay. Runs that are
    in use or not finished are refused. Exit status 1 if one was.
    """
    prepare(root)
    from flows.checkpoints import prune_run

    results = []
    with clear_errors("stopped; the same command goes on where this one stopped"), _bar(not as_json) as advance:
        for run in runs:

            def tell(step: int, done: int, total: int, run: str = run) -> None:
                advance(f"{run} step {step}", done, total)

            results.append(prune_run(root.resolve(), run, dry_run=dry_run, progress=tell))
    if as_json:
        typer.echo(json.dumps([asdict(result) for result in results], indent=2))
    else:
        table = Table("run", "checkpoints", "freed", "exported", box=None, header_style="bold")
        for result in results:
            if result.refused is None:
                steps = ", ".join(map(str, result.steps)) or "none left"
                table.add_row(
                    Text(result.run), steps, _megabytes(result.freed_bytes), _megabytes(result.exported_bytes)
                )
        if table.row_count:
            console.print(table)
            _say("nothing was touched (--dry-run)" if dry_run else "the journals are as they were")
        for result in results:
            if result.refused is not None:
                console.print(
                    Text.assemble(("refused ", "bold red"), f"{result.run}: {result.refused}"), soft_wrap=True
                )
    if any(result.refused for result in results):
        raise typer.Exit(1)


@contextmanager
def _bar(show: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each export, by its name, on a terminal."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        console=console,
        transient=True,
        disable=not show,
    ) as progress:
        bars = {}

        def advance(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(f"exporting {name}")
            progress.update(bars[name], completed=done, total=total)

        yield advance


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
