"""`testgrad report` and `testgrad compare`: runs as one HTML file each, from their journals alone."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flows.commands.errors import clear_errors
from flows.environment import default_root, prepare

console = Console()

Root = Annotated[
    Path, typer.Option("--root", help="Where runs, models and pools are kept", default_factory=default_root)
]


def report(
    run: Annotated[str, typer.Argument(help="project/experiment")],
    root: Root,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write; report.html in the run's folder if not given"),
    ] = None,
) -> None:
    """Write a report on a run as one HTML file that needs nothing else. The run may be going on, or be damaged."""
    prepare(root)
    from flows.report.publish import write_report

    with clear_errors():
        _say_written(write_report(root, run, output))


def compare(
    first: Annotated[str, typer.Argument(help="project/experiment")],
    second: Annotated[str, typer.Argument(help="project/experiment")],
    root: Root,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write")] = Path("compare.html"),
) -> None:
    """Compare two runs: validation paired by task, curves, settings. What the trials do not support is not claimed."""
    prepare(root)
    from flows.report.compare import paired_scores, render_comparison, summary
    from flows.report.reader import read_run
    from tasks.journal import write_text

    with clear_errors():
        runs = read_run(root, first), read_run(root, second)
        write_text(output, render_comparison(*runs))
    table = Table("", escape(first), escape(second), box=None, header_style="bold")
    for row in summary(*runs):
        table.add_row(*map(Text, row))
    console.print(table)
    for pair in paired_scores(*runs):
        steps = " and ".join(str(step) for step in dict.fromkeys(pair.steps))
        text = (
            f"held-out after step {steps}: {pair.gain:+.3f} (95 % {pair.low:+.3f} to {pair.high:+.3f}), {pair.verdict}"
        )
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    _say_written(output)


def _say_written(path: Path) -> None:
    console.print(f"report     {path}", markup=False, highlight=False, soft_wrap=True)
