"""`testgrad clean`: what dead processes have left behind, and its removal."""

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.reaper import Sweep, reap
from harness.sandbox import SANDBOXES, SandboxConfig
from harness.sandbox.leftovers import Leftover
from harness.sandbox.owner import PREFIX
from tasks.cluster_folders import sweep_cluster_folders

console = Console()


def clean(
    config: Annotated[Path | None, typer.Argument(help="A run config, for the hosts and folders that it names")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Remove what is found, instead of listing it")] = False,
) -> None:
    """List what dead testgrad processes left: in each sandbox backend, folders of their own Ray clusters, engines of
    dead runs on the cluster at RAY_ADDRESS; with --apply, remove it.
    """
    sandbox = sandbox_config(config)
    sweep = reap(sandbox, sorted(SANDBOXES), apply=apply)
    sweep_cluster_folders(sweep, apply=apply)
    if os.environ.get("RAY_ADDRESS"):  # what looks there takes seconds to import
        from tasks.orphans import sweep_engines

        sweep_engines(sweep, apply=apply)
    print_sweep(console, sweep, apply)
    if sweep.failed or (sandbox.backend in sweep.unreachable and config is not None):
        raise typer.Exit(1)


def print_sweep(console: Console, sweep: Sweep, applied: bool) -> None:
    """A table of what, whose and since when, then a line that says what was or can be done."""
    if sweep.found:
        table = Table("backend", "what", "whose", "since", box=None, header_style="bold")
        if applied:
            table.add_column("done")
        for leftover in sweep.found:
            error = sweep.failed.get(leftover.name)
            done = [f"cannot be removed: {error}" if error else "removed"] if applied else []
            cells = [leftover.backend, f"{leftover.kind} {leftover.name}", _whose(leftover), _since(leftover), *done]
            table.add_row(*map(Text, cells))
        console.print(table)
    for backend, reason in sweep.unreachable.items():
        console.print(f"{backend}: not looked at: {reason}", markup=False, highlight=False, soft_wrap=True)
    console.print(_summary(sweep, applied), highlight=False)


def _summary(sweep: Sweep, applied: bool) -> str:
    if not sweep.found:
        return "nothing is left over"
    if not applied:
        return f"{len(sweep.found)} left over; remove with: testgrad clean --apply"
    return f"{len(sweep.found) - len(sweep.failed)} of {len(sweep.found)} removed"


def _whose(leftover: Leftover) -> str:
    """Project, run, trial and process; what is not known, or nothing in particular, is left out."""
    owner = [leftover.labels.get(PREFIX + name, "none") for name in ("project", "run", "trial")]
    names = "/".join(name for name in owner if name != "none") or "unknown"
    pid = leftover.labels.get(PREFIX + "pid")
    return f"{names}, process {pid}" if pid else names


def _since(leftover: Leftover) -> str:
    if leftover.since is None:
        return "unknown"
    return datetime.fromtimestamp(leftover.since).strftime("%Y-%m-%d %H:%M")


def sandbox_config(config: Path | None) -> SandboxConfig:
    """The sandbox section of a run config, or the default one."""
    if config is None:
        return SandboxConfig()
    from flows.config import load_config  # takes the learner's and the engine's sections along

    return load_config(config).sandbox
