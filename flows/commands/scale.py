"""`testgrad scale`: more or fewer replicas for a run, while it goes on."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flows.commands.errors import clear_errors
from flows.environment import default_root

console = Console()


def scale(
    run: Annotated[str, typer.Argument(help="project/experiment, a training run")],
    replicas: Annotated[int, typer.Argument(metavar="N", help="How many replicas (vLLM engines) it is to have")],
    root: Annotated[Path, typer.Option("--root", help="Where runs are kept", default_factory=default_root)],
) -> None:
    """Give a run N replicas, in the place of the config's serving.replicas, while it goes on.

    New ones boot beside the trials and serve from the next sync of weights on; those that are too many take no new
    turns, finish what they have begun, and end. No trial is lost. A run that is not alive begins with N when it is
    started again.
    """
    from flows.scale import scale_run

    with clear_errors():
        console.print(scale_run(root.resolve(), run, replicas), markup=False, highlight=False, soft_wrap=True)
