"""`testgrad scaffolds`: the coding agents, and preparing those that run inside sandboxes."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flows.commands.clean import sandbox_config
from flows.commands.errors import clear_errors

console = Console()
errors = Console(stderr=True)

scaffolds = typer.Typer(
    help="List the coding agents, and prepare those that run inside sandboxes.",
    no_args_is_help=True,
    add_completion=False,
)

Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="Where prepared agents are kept; TESTGRAD_RUNTIMES or the cache if not given"),
]


@scaffolds.command("install")
def install_runtimes(
    names: Annotated[list[str], typer.Argument(help="cc, oc, qwen, codex, …; or all")],
    folder: Folder = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A run config, whose sandbox they are tried in; bubblewrap if none")
    ] = None,
) -> None:
    """Fetch agents at their pinned versions and try each in a sandbox. What is ready is left as it is."""
    from harness.scaffolds.runtimes import RUNTIMES, install  # slow to import, and of no use to other commands

    wanted = sorted(RUNTIMES) if "all" in names else list(dict.fromkeys(names))
    if unknown := [name for name in wanted if name not in RUNTIMES]:
        known = ", ".join(sorted(RUNTIMES))
        raise typer.BadParameter(f"{', '.join(unknown)}: no such agent; those that can be prepared are {known}")
    with clear_errors():
        sandbox = sandbox_config(config)
    failed = False
    for name in wanted:
        try:
            asyncio.run(install(name, folder and folder.expanduser().absolute(), sandbox=sandbox, say=_say))
        except (RuntimeError, ValueError) as error:  # the others may well be had
            failed = True
            errors.print(f"[red]{name}:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


@scaffolds.command("ls")
def list_scaffolds(folder: Folder = None) -> None:
    """List the scaffolds, and which of their agents are prepared."""
    from harness.scaffolds.base import SCAFFOLDS
    from harness.scaffolds.runtimes import RUNTIMES, default_folder

    root = folder.expanduser().absolute() if folder else default_folder()
    states = {name: _state(name, root) for name in RUNTIMES}
    table = Table("scaffold", "runs", "agent", "version", "prepared", box=None, header_style="bold")
    for name, scaffold in sorted(SCAFFOLDS.items()):
        agent = [RUNTIMES[name].title, RUNTIMES[name].version, states[name]] if name in RUNTIMES else []
        table.add_row(name, "in the sandbox" if scaffold.runs_inside else "on the host", *map(Text, agent))
    console.print(table)
    _say(f"prepared agents are kept in {root}")
    if missing := [name for name, state in states.items() if state == "no"]:
        _say(f"prepare the others with: testgrad scaffolds install {' '.join(sorted(missing))}")


def _state(name: str, root: Path) -> str:
    from harness.scaffolds.runtimes import RuntimeBuildError, prepared

    try:
        return "yes" if prepared(name, root) else "no"
    except RuntimeBuildError:
        return "not for this machine"


def _say(line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)
