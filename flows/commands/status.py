"""`testgrad status`: where runs are and what is wrong with them, from their journals and this machine alone."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.commands.errors import clear_errors
from flows.environment import default_root

console = Console()

_STYLES = {
    "running": "green", "waiting": "cyan", "finished": "bold", "stopped": "yellow", "failed": "bold red",
    "dead": "bold red", "new": "dim", "unknown": "dim", "OK": "green", "WARN": "yellow", "FATAL": "bold red",
}  # fmt: skip


def status(
    root: Annotated[
        Path, typer.Option("--root", help="Where runs, models and pools are kept", default_factory=default_root)
    ],
    run: Annotated[str | None, typer.Argument(help="project/experiment; all runs, and servers, if not given")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Say where a run is and what is wrong with it: running, dead or finished, offline as well. Or list all runs.

    Nothing is asked but the run's journal and this machine's processes. Exit status with RUN: 0 if nothing is FATAL, 1
    if the run died, failed, or shows a FATAL signature, 2 if there is no such run. Without RUN: 0.
    """
    with clear_errors():
        if run is None:
            _print_all(root.resolve(), as_json)
            return
        ill = _print_one(root.resolve(), run, as_json)
    if ill:
        raise typer.Exit(1)


def _print_all(root: Path, as_json: bool) -> None:
    from deployments import services
    from flows.diagnosis.status import all_statuses

    found, servers = all_statuses(root), services.status(root)
    if as_json:
        shown = [{"name": server.name, "state": server.state, "url": server.url} for server in servers]
        typer.echo(json.dumps({"runs": [status.to_json() for status in found], "servers": shown}, indent=2))
        return
    if found:
        table = Table(
            "run", "state", "step", "score", "stage", "written", "left", "signs", box=None, header_style="bold"
        )
        for row in found:
            table.add_row(*_row(row))
        console.print(table)
    else:
        _say(f"no run in {root}")
    for server in servers:
        _say(f"{server.name}: {server.state} {server.url or ''}")


def _row(status: Any) -> list[Text]:
    state, facts = status.state, status.facts
    score = status.last.get("score")
    signs = Text(", ").join(Text(found.name, _STYLES[str(found.level)]) for found in status.signatures)
    return [
        Text(facts.name, overflow="fold"),
        Text(str(state.state), _STYLES[str(state.state)]),
        Text(f"{facts.newest}/{facts.total_steps if facts.total_steps is not None else '?'}"),
        Text(f"{score:.3f}" if score is not None else "-"),
        Text(state.stage.text if state.stage is not None and str(state.state) in ("running", "waiting") else "-"),
        Text(f"{duration(facts.now - facts.changed_at)} ago" if facts.changed_at is not None else "-"),
        Text(duration(state.eta_seconds) if state.eta_seconds is not None else "-"),
        signs,
    ]


def _print_one(root: Path, run: str, as_json: bool) -> bool:
    from flows.diagnosis.status import status_of
    from flows.diagnosis.text import Shown

    status = status_of(root, run)
    if as_json:
        typer.echo(json.dumps(status.to_json(), indent=2, ensure_ascii=False))
        return status.ill
    shown = Shown()
    facts, state = status.facts, status.state
    table = Table(box=None, show_header=False)
    table.add_row(Text("run", "bold"), Text(f"{facts.name}, journal in {facts.journal.root}"))
    since = f" since {_clock(state.since)}" if state.since is not None else ""
    table.add_row(Text("state", "bold"), Text(f"{state.state}{since}", _STYLES[str(state.state)]))
    table.add_row("", Text(shown.lines(state.why)))
    of = facts.total_steps if facts.total_steps is not None else "?"
    table.add_row(Text("steps", "bold"), Text(f"{facts.newest} of {of} recorded"))
    if state.stage is not None:
        table.add_row(Text("stage", "bold"), Text(state.stage.text))
    if state.eta_seconds is not None:
        table.add_row(Text("left", "bold"), Text(f"about {duration(state.eta_seconds)} ({state.eta_from})"))
    if facts.changed_at is not None:
        ago = duration(facts.now - facts.changed_at)
        table.add_row(Text("written", "bold"), Text(f"{ago} ago, {_clock(facts.changed_at)}"))
    if status.last:
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in status.last.items())
        table.add_row(Text("last step", "bold"), Text(numbers))
    for step, record in sorted(facts.evaluations.items())[-2:]:
        table.add_row(Text("validation", "bold"), Text(_evaluation(step, record)))
    console.print(table)
    _print_first_step(status.first_step, shown)
    for found in status.signatures:
        _print_signature(found, shown)
    if not status.signatures:
        _say("\nno signature of a run that is ill was found")
    for note in facts.notes:
        _say(shown(f"note: {note}"))
    return bool(status.ill)


def _print_first_step(verdict: dict[str, Any] | None, shown: Any) -> None:
    """The verdict on step 1 in one line, and its lines that are not well."""
    if verdict is None:
        return
    findings = [entry for entry in verdict.get("findings", []) if isinstance(entry, dict)]
    told = verdict.get("verdict")
    console.print(Text(f"\nfirst step: {told}, {len(findings)} checks", _STYLES.get(str(told), "")))
    for entry in findings:
        if entry.get("level") != "OK":
            _say(shown(f"  {entry.get('check')}: {entry.get('field')} is {entry.get('value')}: {entry.get('why')}"))


def _print_signature(found: Any, shown: Any) -> None:
    console.print(
        Text.assemble("\n", (f"{found.level.mark} {found.level:<6}{found.name}", _STYLES[str(found.level)]),
                      f"  {shown(found.claim)}"),
        soft_wrap=True,
    )  # fmt: skip
    for fact in found.facts:
        _say(f"    {shown(fact)}")
    for metric, series in found.evidence.items():
        if series:
            _say(f"    {metric}: " + ", ".join(f"{value:.4g} ({step})" for step, value in series))
    for number, cause in enumerate(found.causes, 1):
        _say(f"    likely {number}: {shown(cause.text)}")


def _evaluation(step: int, record: dict[str, Any]) -> str:
    scored, launched, mean = record.get("scored"), record.get("launched"), record.get("mean_reward")
    told = f"{mean:.3f}" if isinstance(mean, int | float) else "not scored"
    return f"after step {step}: {told}, {scored} of {launched} trials scored"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    seconds = max(seconds, 0.0)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
