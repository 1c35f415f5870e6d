"""The command line: `testgrad --help`."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from flows.commands.check import check
from flows.commands.checkpoints import export, prune
from flows.commands.clean import clean
from flows.commands.collect import collect
from flows.commands.config import config_app
from flows.commands.doctor import doctor
from flows.commands.errors import clear_errors
from flows.commands.evaluate import evaluate
from flows.commands.evaluations import eval_compare, regrade
from flows.commands.logs import logs
from flows.commands.plan import plan
from flows.commands.pool_ready import pool_app  # with all of flows.commands.pool's
from flows.commands.report import compare, report
from flows.commands.scaffolds import scaffolds
from flows.commands.scale import scale
from flows.commands.status import status
from flows.commands.ui import ui
from flows.commands.warm_start import warm_start
from flows.environment import default_root, prepare
from flows.last_words import end_quietly

app = typer.Typer(
    help="Reinforcement learning that teaches a language model to repair real repositories, graded by their own tests.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
_RESUMES = "stopped; the same command goes on where this run stopped"

Root = Annotated[
    Path, typer.Option("--root", help="Where runs, models and pools are kept", default_factory=default_root)
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: section.key=value; may be repeated")
]


@app.command()
def quickstart(
    root: Root,
    set_: Overrides = None,
    fresh: Annotated[bool, typer.Option(help="Remove an earlier quickstart first")] = False,
) -> None:
    """Watch a small model learn to fix bugs: the main job, in about ten minutes on two cores."""
    prepare(root)
    from flows.reports import report_quickstart

    config = _load(Path(__file__).parent.parent / "deployments" / "runs" / "quickstart.yaml", set_)
    if fresh:
        _remove_run(root, config.project, config.experiment)
    _train(config, root, report_quickstart)


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="A run config in YAML")], root: Root, set_: Overrides = None
) -> None:
    """Train a policy. A run of the same name goes on where it stopped."""
    prepare(root)
    from flows.reports import report_training

    _train(_load(config, set_), root, report_training)


@app.command()
def trials(
    run: Annotated[str, typer.Argument(help="project/experiment")],
    root: Root,
    session: Annotated[
        str | None, typer.Argument(help="A trial's session id, or its beginning; lists trials if not given")
    ] = None,
    step: Annotated[int | None, typer.Option(help="Only trials of this step")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only trials with this outcome or verdict")] = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most this many")] = 40,
    atif: Annotated[
        Path | None, typer.Option(help="Write them to this folder instead, in Harbor's trajectory format")
    ] = None,
    prompt_ids: Annotated[bool, typer.Option(help="With --atif: repeat the whole prompt's ids at each step")] = False,
) -> None:
    """List the trials of a run, or show one: conversation, diff and test report. Or export them."""
    prepare(root)
    from flows.export_atif import export_trials
    from flows.trial_view import find_trial, find_trials, list_trials, show_trial
    from tasks.journal import Journal

    with clear_errors():
        journal = Journal(root / run)
        if atif is not None:
            chosen = find_trials(journal, step, outcome) if session is None else [find_trial(journal, session)]
            written = export_trials(journal, chosen, atif, prompt_ids=prompt_ids)
            console.print(f"wrote {len(written)} of {len(chosen)} trials to {atif}", highlight=False)
        elif session is None:
            list_trials(console, journal, step, outcome, limit)
        else:
            show_trial(console, journal, session)


@app.command()
def algorithms(
    plugin: Annotated[list[str] | None, typer.Option(help="A module that registers more; may be repeated")] = None,
) -> None:
    """List advantage estimators, policy losses, aggregations and KL estimators: formula, settings, source."""
    from flows.algorithms_view import print_algorithms
    from flows.config import import_plugin

    with clear_errors():
        for name in plugin or []:
            import_plugin(name)
        print_algorithms(console)


app.command()(collect)
app.command()(export)
app.command()(prune)
app.command("eval")(evaluate)
app.command("eval-compare")(eval_compare)
app.command()(regrade)
app.command()(logs)
app.command()(check)
app.command()(plan)
app.command()(report)
app.command()(compare)
app.command()(clean)
app.command()(doctor)
app.command()(status)
app.command()(scale)
app.command("warm-start")(warm_start)
app.command()(ui)
app.add_typer(config_app, name="config")
app.add_typer(pool_app, name="pool")
app.add_typer(scaffolds, name="scaffolds")


@app.command()
def up(
    root: Root,
    host: Annotated[str, typer.Option(help="Where the servers listen; they ask nobody for a password")] = "127.0.0.1",
    servers_only: Annotated[
        bool, typer.Option("--servers-only", help="No worker and no deployments: only pages to look at runs in")
    ] = False,
) -> None:
    """Start a Prefect server, a worker and MLflow, and deploy the flows; later runs use them. Safe to repeat."""
    from deployments import services
    from deployments.deploy import deploy

    with clear_errors():
        found = services.up(root, host, worker=not servers_only)
        if not servers_only:
            deploy(root, found)


@app.command()
def down(root: Root) -> None:
    """Stop the servers and the worker that `up` started; flow runs of the worker end with it."""
    from deployments import services

    with clear_errors():
        services.down(root)


def main() -> None:
    """Entry point of the console script."""
    end_quietly()
    signal.signal(signal.SIGTERM, _interrupt)
    app()


def _interrupt(*_: object) -> None:
    """Make a plain `kill` clean up as Ctrl-C does, also in a script's background, where Ctrl-C is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def _load(path: Path, overrides: list[str] | None) -> Any:
    from flows.config import load_config

    with clear_errors():
        return load_config(path, overrides or [])


def _train(config: Any, root: Path, report: Callable[..., None]) -> None:
    from flows.train import train as train_flow

    with clear_errors(_RESUMES), _view():
        summary = _run(train_flow(config, root))
    report(console, config, root, summary)


def _run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


@contextmanager
def _view() -> Iterator[None]:
    from flows.view import RunView

    with RunView(console).live():
        yield


def _remove_run(root: Path, project: str, experiment: str) -> None:
    import shutil

    shutil.rmtree(root / project / experiment, ignore_errors=True)
