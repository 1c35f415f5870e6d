"""`testgrad check`: all that can be known to be wrong with a run before it starts."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.commands.errors import clear_errors
from flows.environment import default_root

console = Console()

_STYLES = {"OK": "green", "WARN": "yellow", "FATAL": "bold red"}


def check(
    config: Annotated[Path, typer.Argument(help="A run config (.yaml, .toml, .env), or a run's config.json")],
    root: Annotated[
        Path, typer.Option("--root", help="Where runs, models and pools are kept", default_factory=default_root)
    ],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: section.key=value; may be repeated")
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option("--site", help="The site file; TESTGRAD_SITE or ~/.config/testgrad/site.yaml if not given"),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Ask no server and run no task")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this check; may be repeated")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print in full what would be launched as well")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Check a run before it starts. Nothing is launched, and nothing is forced.

    ✓ OK is well, ! WARN is to be known, ✗ FATAL must be mended. Exit status: 0 if nothing is FATAL, else 1; 2 if the
    command line is wrong.
    """
    with clear_errors():
        answer = _check(config, root.resolve(), set_ or [], site, quick, only or [], dry_run, say=not as_json)
    if as_json:
        typer.echo(json.dumps(answer, indent=2, ensure_ascii=False))
    if not answer["safe"]:
        raise typer.Exit(1)


def _check(
    path: Path,
    root: Path,
    overrides: list[str],
    site: Path | None,
    quick: bool,
    only: list[str],
    dry_run: bool,
    say: bool,
) -> dict[str, Any]:
    from flows.config import ConfigError
    from flows.configuration import load_run
    from flows.preflight.facts import Facts
    from flows.preflight.findings import Finding, warn
    from flows.preflight.launch import launch_plan
    from flows.preflight.registry import CHECKS, Cost
    from flows.preflight.run import run_checks
    from flows.preflight.run_block import run_block

    from flows.preflight import checks  # noqa: F401  # isort: skip  (registers them)

    if unknown := sorted(set(only) - set(CHECKS)):
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(CHECKS)}", param_hint="--only")
    findings: list[Finding] = []

    def tell(finding: Finding) -> None:
        findings.append(finding)
        if say:
            _print_finding(finding.level, finding.check, finding.message)

    answer: dict[str, Any] = {"config": str(path), "run": {}}
    try:
        resolved = load_run(path, overrides, site=site)
    except ConfigError as error:
        for line in str(error).splitlines():
            tell(_refused(line))
        return answer | _verdict(findings, say)
    facts = Facts(resolved.config, root)
    block = run_block(resolved, facts, path)
    answer["run"] = dict(block)
    if say:
        _print_block(block)
    for note in resolved.notes:
        place, _, text = note.partition(": ")
        why, _, mend = text.rpartition("; ")
        tell(replace(warn(place, "", why or text, mend if why else ""), check="configuration"))
    for finding in run_checks(facts, Cost.CHEAP if quick else Cost.TRIAL, only):
        tell(finding)
    if dry_run:
        answer["launch"] = launch_plan(resolved.config, root)
        if say:
            console.print(Text("\nwould be launched:", "bold"))
            _say(yaml.safe_dump(answer["launch"], sort_keys=False, allow_unicode=True, width=100))
    return answer | _verdict(findings, say)


def _refused(line: str) -> Any:
    """A line of a configuration that could not be resolved, as a finding."""
    from flows.preflight.findings import fatal

    where, _, text = line.partition(": ")
    field, _, rest = text.partition(": ")
    if not re.fullmatch(r"[\w.]+", field):
        field, rest = "", text
    why, _, mend = rest.rpartition("; ")
    said = f"{where}: {why or rest}" if rest else line
    return replace(fatal(field, "", said, mend if why else "correct it"), check="configuration")


def _verdict(findings: list[Any], say: bool) -> dict[str, Any]:
    counts = Counter(str(finding.level) for finding in findings)
    safe = not counts["FATAL"]
    if say:
        told = ", ".join(f"{counts[level]} {level}" for level in _STYLES)
        console.print(
            Text(f"\n{told}: {'may start' if safe else 'must not start'}", "bold green" if safe else "bold red")
        )
    return {"findings": [f.to_json() for f in findings], "counts": dict(counts), "safe": safe}


def _print_block(block: list[tuple[str, str]]) -> None:
    table = Table(box=None, show_header=False)
    for what, text in block:
        table.add_row(Text(what, "bold"), Text(text))
    console.print(table)
    console.print()


def _print_finding(level: Any, check: str, message: str) -> None:
    console.print(
        Text.assemble((f"{level.mark} {level:<6}", _STYLES[str(level)]), (f"{check:<18}", "dim"), message),
        soft_wrap=True,
    )


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
