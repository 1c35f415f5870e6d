"""`testgrad config …`: what holds in a run's configuration, who said so, and templates to begin with."""

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.commands.errors import clear_errors

config_app = typer.Typer(
    help="Run configs: begin one, and see what holds in it and which layer said so.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()

Config = Annotated[Path, typer.Argument(help="A run config (.yaml, .toml, .env), or a run's config.json")]
Site = Annotated[
    Path | None,
    typer.Option("--site", help="The site file; TESTGRAD_SITE or ~/.config/testgrad/site.yaml if not given"),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: section.key=value; may be repeated")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON")]


class Format(StrEnum):
    YAML = "yaml"
    TOML = "toml"
    ENV = "env"


@config_app.command()
def init(
    target: Annotated[Path | None, typer.Argument(help="The file to write; printed if not given")] = None,
    backend: Annotated[str, typer.Option(help="Where trials run")] = "bubblewrap",
    scaffold: Annotated[str, typer.Option(help="The agent")] = "edit",
    mode: Annotated[str, typer.Option(help="How trials and updates follow each other")] = "sync",
    engine: Annotated[str, typer.Option(help="What the policy is trained and served on")] = "cpu",
    format_: Annotated[
        Format | None, typer.Option("--format", help="Of the file; by its ending, else YAML, if not given")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every setting, not only those often tuned")] = False,
    site: Annotated[bool, typer.Option("--site", help="A site file instead of a run config")] = False,
) -> None:
    """Write a template. Its CHANGEME values are refused until they are changed."""
    from flows.config import ConfigError
    from flows.configuration.templates import run_template, site_template

    with clear_errors():
        ending = target.suffix.removeprefix(".") if target is not None else ""
        chosen = format_ or (Format(ending) if ending in list(Format) else Format.YAML)
        axes = {"backend": backend, "scaffold": scaffold, "mode": mode, "engine": engine}
        text = site_template(chosen) if site else run_template(chosen, axes, everything=everything)
        if target is None:
            typer.echo(text, nl=False)
            return
        try:
            with target.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError as error:
            raise ConfigError(f"{target} exists, and is left as it is; choose another name, or remove it") from error
        except OSError as error:
            raise ConfigError(f"{target} cannot be written: {error.strerror}") from error
        _say(f"wrote {target}; replace its CHANGEME values, then: testgrad check {target}")


@config_app.command()
def show(
    config: Config,
    set_: Overrides = None,
    site: Site = None,
    only_set: Annotated[bool, typer.Option("--changed", help="Only what some layer sets")] = False,
    as_json: AsJson = False,
) -> None:
    """Print every setting, its value, and the layer that gave it. Secrets are not shown."""
    from flows.configuration import load_run
    from flows.configuration.explain import as_text, table
    from flows.configuration.redaction import Redactor

    with clear_errors():
        resolved = load_run(config, set_ or [], site=site)
        redactor = Redactor()
        rows = table(resolved, redactor, only_set=only_set)
        notes = [redactor.text(note) for note in resolved.notes]
        if as_json:
            _print_json({"settings": rows, "notes": notes})
            return
        lines = [(row["key"], as_text(row["value"]), row["set_by"]) for row in rows]
        _print_rows(("setting", "value", "set by"), lines)
        for note in notes:
            _say(f"note: {note}")


@config_app.command()
def explain(
    key: Annotated[str, typer.Argument(help="A setting or a section, such as learner.lr")],
    config: Annotated[Path | None, typer.Option("--config", help="A run config; the other layers only if none")] = None,
    set_: Overrides = None,
    site: Site = None,
    as_json: AsJson = False,
) -> None:
    """Say what a setting means, what it is, which layers set it, and how else it can be set."""
    from flows.configuration import load_run
    from flows.configuration.explain import explain as lines_about
    from flows.configuration.redaction import Redactor

    with clear_errors():
        # an experiment is required of a run, and this need not be one
        environment = os.environ if config else {"TESTGRAD_EXPERIMENT": "unnamed", **os.environ}
        resolved = load_run(config, set_ or [], site=site, environment=environment)
        lines = lines_about(resolved, key, Redactor())
        if as_json:
            _print_json([{"about": about, "text": text} for about, text in lines])
            return
        _print_rows(None, lines)


@config_app.command()
def diff(
    first: Config,
    second: Config,
    set_: Overrides = None,
    site: Site = None,
    as_json: AsJson = False,
) -> None:
    """Print the settings whose resolved values differ, with who set them. Exit status 1 if there are any."""
    from flows.configuration import load_run
    from flows.configuration.explain import as_text, differences
    from flows.configuration.redaction import Redactor

    with clear_errors():
        left, right = (load_run(path, set_ or [], site=site) for path in (first, second))
        rows = differences(left, right, Redactor())
    if as_json:
        _print_json(rows)
    elif not rows:
        _say("nothing differs")
    else:
        lines = [
            (row["key"], *(f"{as_text(row[side]['value'])}  [{row[side]['set_by']}]" for side in ("first", "second")))
            for row in rows
        ]
        _print_rows(("setting", str(first), str(second)), lines)
    if rows:
        raise typer.Exit(1)


def _print_rows(header: tuple[str, ...] | None, rows: list[Any]) -> None:
    columns = len(header or rows[0])
    table = Table(*(header or [""] * columns), box=None, header_style="bold", show_header=header is not None)
    for column in table.columns:
        column.overflow = "fold"
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
