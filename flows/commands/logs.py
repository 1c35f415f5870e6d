"""`testgrad logs`: what a run says and has said."""

import json
import logging
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from flows.commands.errors import clear_errors
from flows.environment import default_root
from flows.printable import printable, printable_lines

_COLOURS = {"WARNING": "yellow", "ERROR": "bold red", "CRITICAL": "bold red"}


def logs(
    run: Annotated[str, typer.Argument(help="PROJECT/EXPERIMENT")],
    root: Annotated[Path, typer.Option("--root", help="Where runs are kept", default_factory=default_root)],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as the run does; Ctrl-C ends it")] = False,
    level: Annotated[str, typer.Option(help="The least severe level shown: debug, info, warning, error")] = "info",
    step: Annotated[int | None, typer.Option(help="Only this step")] = None,
    trial: Annotated[str | None, typer.Option(help="Only the trial whose id begins so")] = None,
    lines: Annotated[int | None, typer.Option("-n", "--lines", help="Only the last so many")] = None,
    json_: Annotated[bool, typer.Option("--json", help="The records as they are kept, one a line")] = False,
) -> None:
    """Show the log of a run: stages, notes, warnings and errors, each with its step and trial."""
    from tasks.run_log import read_log

    with clear_errors("no longer following"):
        least = logging.getLevelName(level.upper())
        if not isinstance(least, int):
            raise typer.BadParameter(
                f"{level}: no such level; take debug, info, warning or error", param_hint="--level"
            )
        folder = root / run / "logs"
        if not folder.is_dir():
            raise typer.BadParameter(f"{run}: {root} has no run of this name that has said anything", param_hint="RUN")
        console = Console(soft_wrap=True)

        def matching(follow: bool) -> Iterator[dict[str, Any]]:
            return (entry for entry in read_log(folder, follow) if _matches(entry, least, step, trial))

        skipped = 0 if lines is None else max(0, sum(1 for _ in matching(follow=False)) - lines)
        for entry in islice(matching(follow), skipped, None):
            _show(console, entry, json_)


def _matches(entry: dict[str, Any], least: int, step: int | None, trial: str | None) -> bool:
    level = logging.getLevelName(str(entry.get("level")))
    if isinstance(level, int) and level < least:
        return False
    if step is not None and step not in (_number(entry.get("flow_run")), _number(entry.get("label"))):
        return False
    return trial is None or str(entry.get("trial", "")).startswith(trial)


def _number(name: Any) -> int | None:
    """12 of `step-12` and of `step_000012`."""
    found = re.fullmatch(r"step[-_](\d+)", str(name))
    return int(found.group(1)) if found else None


def _show(console: Console, entry: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(entry), flush=True)
        return
    level = str(entry.get("level", ""))
    text = Text(str(entry.get("time", ""))[:19].replace("T", " "), style="dim")
    text.append(f" {level:<7}", style=_COLOURS.get(level, ""))
    where = " ".join(str(entry[name]) for name in ("flow_run", "task_run", "trial") if entry.get(name))
    text.append(f" {printable(where)}" if where else "", style="cyan")
    text.append(f" {printable_lines(str(entry.get('message', '')))}")
    console.print(text, highlight=False)
    if entry.get("exception"):
        console.print(Text(printable_lines(str(entry["exception"])), style="dim"), highlight=False)
