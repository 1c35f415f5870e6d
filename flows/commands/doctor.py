"""`testgrad doctor`: a real trial on every sandbox backend, what is missing, and how to mend it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.commands.clean import sandbox_config
from harness.checkup import Checkup, check_backend
from harness.pool.sample import sample_task
from harness.sandbox import SANDBOXES, SandboxConfig
from harness.sandbox.guard import finish_stops
from harness.sandbox.leftovers import scratch

console = Console()


def doctor(
    config: Annotated[Path | None, typer.Argument(help="A run config, whose sandbox section is then used")] = None,
    backend: Annotated[list[str] | None, typer.Option(help="Only this backend; may be repeated")] = None,
) -> None:
    """Check each sandbox backend with a real trial: nothing done must score 0, the solution 1.

    Fails when a backend that can be used grades wrongly, or one that was asked for cannot be used: those named by
    --backend, else the config's, else bubblewrap.
    """
    sandbox = sandbox_config(config)
    names = backend or sorted(SANDBOXES)
    unknown = sorted(set(names) - set(SANDBOXES))
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(sorted(SANDBOXES))}", param_hint="--backend")
    checkups = asyncio.run(check(sandbox, names))
    print_checkups(console, checkups)
    wanted = set(backend or [sandbox.backend])
    if any(checkup.problems or (checkup.missing and checkup.backend in wanted) for checkup in checkups):
        raise typer.Exit(1)


async def check(sandbox: SandboxConfig, backends: Sequence[str]) -> list[Checkup]:
    """One backend after the other, with a task of the kata pool."""
    with scratch() as folder:
        task = await asyncio.to_thread(sample_task, folder / "task")
        checkups = [await check_backend(task, sandbox.model_copy(update={"backend": name})) for name in backends]
        await finish_stops()
    return checkups


def print_checkups(console: Console, checkups: Sequence[Checkup]) -> None:
    """A row for each backend, with what is wrong below its name."""
    table = Table("backend", "", "seconds", "", box=None, header_style="bold")
    for checkup in checkups:
        state = Text("sound", "green") if checkup.sound else Text("cannot be used", "yellow")
        if checkup.problems:
            state = Text("must not be used", "bold red")
        details = checkup.missing or "\n".join(checkup.problems) or "nothing done scores 0, the solution 1"
        table.add_row(checkup.backend, state, f"{checkup.seconds:.1f}", Text(details))
    console.print(table)
