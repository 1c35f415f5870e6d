"""`testgrad pool …`: what is in a pool, what of it to use, and how others' data sets become one."""

import asyncio
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flows.commands.errors import checked, clear_errors
from flows.environment import default_root, prepare

pool_app = typer.Typer(
    help="Task pools: build, import, look at, choose from, and give away.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()

Root = Annotated[
    Path, typer.Option("--root", help="Where runs, models and pools are kept", default_factory=default_root)
]
Index = Annotated[Path, typer.Argument(help="An index (.parquet)")]
Output = Annotated[Path, typer.Option("--output", "-o", help="The index to write")]
Variable = Annotated[
    str | None,
    typer.Option(help="Environment variable with the folder of the pools: paths below it are written as ${VARIABLE}/…"),
]
Repos = Annotated[
    Path | None, typer.Option(help="Folder of local clones (owner/name, owner__name or name), to make snapshots from")
]


class Repeated(StrEnum):
    REFUSE = "refuse"
    FIRST = "first"


@pool_app.command()
def kata(
    root: Root, seed: Annotated[int, typer.Option(help="Another seed gives other bugs and another split")] = 0
) -> None:
    """Build the kata pool: small functions with injected bugs, each proven by its hidden tests."""
    from harness.pool.index import read_index
    from harness.pool.kata import build_pool

    with clear_errors():
        paths = build_pool(root / "pools" / "kata", seed=seed)
        for name, path in (("train", paths.train), ("heldout", paths.heldout)):
            say(f"{name}: {len(read_index(path))} tasks in {path}")


@pool_app.command("ls")
def list_pools(
    root: Root,
    folder: Annotated[Path | None, typer.Argument(help="Where to look for indexes; ROOT/pools if not given")] = None,
) -> None:
    """List the indexes of a folder: tasks, repositories, kinds of grading, split."""
    from flows.pool_view import indexes_table

    with clear_errors():
        console.print(indexes_table(folder or root / "pools"))


@pool_app.command()
def show(
    index: Index,
    instance: Annotated[
        str | None, typer.Argument(help="A task's id, or its beginning; lists tasks if not given")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most this many")] = 40,
) -> None:
    """List the tasks of an index, or show one: instruction, tests, environment."""
    from flows.pool_view import show_task, tasks_table
    from harness.pool.index import read_index

    with clear_errors():
        rows = read_index(index)
        if instance is not None:
            show_task(console, rows, instance)
            return
        console.print(tasks_table(rows[:limit]))
        if len(rows) > limit:
            say(f"{limit} of {len(rows)} tasks; more with --limit")


@pool_app.command()
def stats(
    index: Index,
    by: Annotated[list[str] | None, typer.Option(help="Count by this key; may be repeated")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the histogram of pass rates as a picture (PNG)")] = None,
) -> None:
    """Count the tasks of an index by repository, kind and difficulty; with pass rates, their histogram."""
    from flows.pool_plot import plot_difficulty
    from flows.pool_view import print_stats
    from harness.pool.index import read_index

    with clear_errors():
        rows = read_index(index, absent_tasks=True)
        print_stats(console, rows, by or [])
        if plot is not None:
            say(f"plot {plot_difficulty(rows, plot)}")


@pool_app.command()
def merge(
    indexes: Annotated[list[Path], typer.Argument(help="Indexes, in the order of their rows")],
    output: Output,
    repeated: Annotated[Repeated, typer.Option(help="What to do with an id that comes again")] = Repeated.REFUSE,
    variable: Variable = None,
) -> None:
    """Unite indexes into one."""
    from harness.pool import index_tools
    from harness.pool.index import read_index, write_index

    with clear_errors():
        parts = [read_index(path) for path in indexes]
        rows = index_tools.merge(parts, "first" if repeated is Repeated.FIRST else "refuse")
        write_index(rows, output, variable)
        dropped = sum(map(len, parts)) - len(rows)
        say(f"{len(rows)} tasks in {output}" + (f"; {dropped} repeated ones left out" if dropped else ""))


@pool_app.command()
def split(
    index: Index,
    train: Annotated[Path, typer.Option(help="The index of tasks to train on")],
    heldout: Annotated[Path, typer.Option(help="The index of tasks to score on")],
    share: Annotated[float, typer.Option(help="Part of the tasks that is held out")] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="Another seed holds out other repositories")] = 0,
    variable: Variable = None,
) -> None:
    """Split an index in two by repository: none is on both sides."""
    from flows.pool_view import split_table
    from harness.pool.index import read_index, write_index
    from harness.pool.index_tools import split_by_repository

    with clear_errors():
        sides = split_by_repository(read_index(index), share, seed)
        for rows, path in zip(sides, (train, heldout), strict=True):
            write_index(rows, path, variable)
        console.print(split_table(*sides))


@pool_app.command("filter")
def filter_(
    index: Index,
    output: Output,
    where: Annotated[str, typer.Option(help='What is kept, as in: 0 < pass_rate < 1 and repo != "django/django"')],
    limit: Annotated[int | None, typer.Option(min=1, help="Keep the first ones only")] = None,
    variable: Variable = None,
) -> None:
    """Keep the tasks for which an expression on the index's columns is true."""
    from harness.pool.index import read_index, write_index
    from harness.pool.index_tools import filter_rows

    with clear_errors():
        rows = read_index(index)
        kept = filter_rows(rows, where)[:limit]
        write_index(kept, output, variable)
        say(f"kept {len(kept)} of {len(rows)} tasks in {output}")


@pool_app.command()
def validate(
    indexes: Annotated[list[Path], typer.Argument(help="Indexes to check")],
    against: Annotated[
        Path | None, typer.Option(help="An index that must have no repository in common, such as the held-out one")
    ] = None,
) -> None:
    """Load every task of an index and say what is wrong. Status 1 if any cannot be run."""
    from flows.pool_view import findings_table
    from harness.pool.index import read_index, stored_paths
    from harness.pool.index_tools import shared_repositories
    from harness.pool.index_tools import validate as check

    with clear_errors():
        bad = False
        for index in indexes:
            rows = read_index(index, absent_tasks=True)
            findings = list(check(rows, stored_paths(index)))
            if findings:
                console.print(findings_table(findings))
            levels = {level: sum(f.level == level for f in findings) for level in ("error", "pending", "warning")}
            told = ", ".join(f"{count} {level}" for level, count in levels.items() if count) or "nothing to complain of"
            say(f"{index}: {len(rows)} tasks, {told}")
            bad |= bool(levels["error"])
            shared = shared_repositories(rows, read_index(against, absent_tasks=True)) if against else {}
            if shared:
                say(f"{index} and {against} share repositories: {', '.join(sorted(shared))}")
                bad = True
    if bad:
        raise typer.Exit(1)


@pool_app.command()
def difficulty(
    root: Root,
    index: Index,
    from_: Annotated[
        list[str],
        typer.Option(
            "--from", help="Whose trials: a collection, a run as project/experiment, a folder; may be repeated"
        ),
    ],
    output: Output,
    keep: Annotated[
        str,
        typer.Option(
            "--keep", "--band", help="Pass rates that are kept: '0 < rate < 1', '0.1:0.9' with its ends, or '(0, 0.5]'"
        ),
    ] = "0 < rate < 1",
    min_trials: Annotated[int, typer.Option(min=1, help="Trials that a rate needs; lost ones do not count")] = 2,
    report: Annotated[
        Path | None, typer.Option(help="Where the report goes (.md); beside the index that is written if not given")
    ] = None,
    variable: Variable = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Measure pass rates by trials that were run, and keep the tasks of a band. Infrastructure is no failure.

    Writes the index, whose rows have pass_rate, trials, infra_trials and band, and a report with the histogram.
    """
    from flows.difficulty_report import Measured, as_json_values, facts_of, trials_folder, write_report
    from flows.pool_view import print_selection
    from harness.pool.difficulty import Band, count_passes, read_trials, select
    from harness.pool.index import read_index, write_index

    with clear_errors():
        chosen = Band.parse(keep)
        rows = read_index(index)
        folders = [trials_folder(name, root) for name in from_]
        counts = count_passes(end for folder in folders for end in read_trials(folder))
        selection = select(rows, counts, chosen, min_trials)
        if not as_json:
            print_selection(console, rows, counts, selection)
        facts = {"trials": ", ".join(from_)} | (facts_of(folders[0]) if len(folders) == 1 else {})
        measured = Measured(rows, counts, selection, str(chosen), facts)
        written = write_report(report or output.with_suffix(".md"), f"Difficulty of {index.name}", measured)
        write_index(selection.kept, output, variable)
        if as_json:
            values = as_json_values(measured) | {"index": str(output), "report": str(written)}
            typer.echo(json.dumps(values, indent=2))
            return
        say(f"kept {len(selection.kept)} of {len(rows)} tasks in {output}")
        say(f"report {written}")


@pool_app.command()
def importers(
    plugin: Annotated[list[str] | None, typer.Option(help="A module that registers more; may be repeated")] = None,
) -> None:
    """List the data sets that can be imported."""
    from flows.pool_view import importers_table

    with clear_errors():
        _import_plugins(plugin)
        console.print(importers_table())


@pool_app.command()
def build(
    root: Root,
    package: Annotated[
        list[str] | None, typer.Option(help="A source distribution as name==version; may be repeated")
    ] = None,
    source: Annotated[list[str] | None, typer.Option(help="A folder with a package and its tests")] = None,
    git: Annotated[list[str] | None, typer.Option(help="A commit of a local checkout, as folder@commit")] = None,
    target: Annotated[
        Path | None, typer.Option(help="The folder of the pool; ROOT/pools/built if not given", show_default=False)
    ] = None,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks wanted of each package")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Another seed tries other bugs")] = 0,
    kind: Annotated[list[str] | None, typer.Option(help="A kind of bug; all if not given")] = None,
    with_: Annotated[
        list[str] | None, typer.Option("--with", help="What the tests need besides, as hypothesis==6.100.0")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Files to leave out, as docs/*")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Files that get bugs, as networkx/algorithms/*")] = None,
    pass_to_pass: Annotated[
        str, typer.Option(help="Tests that must still pass: suite, or file (those that run the changed file)")
    ] = "suite",
    writer_url: Annotated[
        str | None, typer.Option(help="OpenAI-compatible server whose model words the instructions")
    ] = None,
    writer_model: Annotated[str | None, typer.Option(help="The model there")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Sandboxes at a time; one for each CPU")] = None,
) -> None:
    """Make tasks of Python packages: put bugs in, keep those that their tests find, prove each by grading it."""
    prepare(root)
    from flows.build_pool import build_pool
    from flows.build_view import build_bars, print_build
    from flows.config import ConfigError
    from harness.pool.builder import BuildConfig, PackageSource, WriterConfig
    from harness.sandbox import SandboxConfig

    with clear_errors("stopped; the same command goes on where this build stopped"):
        sources = [PackageSource.package(spec) for spec in package or []]
        sources += [PackageSource.folder(spec) for spec in source or []]
        sources += [PackageSource.git(spec) for spec in git or []]
        if not sources:
            raise ConfigError("nothing to build from; name a --package, a --source or a --git")
        if (writer_url is None) != (writer_model is None):
            raise ConfigError("--writer-url and --writer-model belong together; give both")
        writer = WriterConfig(url=writer_url, model=writer_model) if writer_url and writer_model else None
        config = checked(
            BuildConfig, seed=seed, tasks_per_package=tasks, kinds=kind or [], requirements=with_ or [],
            exclude=exclude or [], only=only or [], pass_to_pass=pass_to_pass, writer=writer, workers=workers,
        )  # fmt: skip
        place = target or root / "pools" / "built"
        with build_bars(console, [one.label for one in sources], tasks):
            results = asyncio.run(build_pool(place, sources, config, SandboxConfig()))
        print_build(console, results)
        count = sum(len(result.tasks) for result in results)
        say(f"{count} tasks of this build in {place / 'index.parquet'}; what was not taken is in rejected.jsonl")
    if any(result.problem for result in results) or not count:
        raise typer.Exit(1)


@pool_app.command("import")
def import_(
    importer: Annotated[str, typer.Argument(help="What the data set is: see `testgrad pool importers`")],
    source: Annotated[Path, typer.Argument(help="Its files: parquet, jsonl, json, or a folder of them")],
    target: Annotated[Path, typer.Argument(help="The folder of the pool to write")],
    repos: Repos = None,
    agent_timeout: Annotated[float, typer.Option(min=1, help="Seconds that an agent gets")] = 1800,
    verifier_timeout: Annotated[float, typer.Option(min=1, help="Seconds that the hidden tests get")] = 1800,
    plugin: Annotated[list[str] | None, typer.Option(help="A module that registers more; may be repeated")] = None,
) -> None:
    """Turn a data set into a pool. What cannot be a task is told with its reason, and written to rejected.jsonl."""
    from flows.pool_view import print_import
    from harness.pool.importers import ImportOptions, import_pool

    with clear_errors():
        _import_plugins(plugin)
        options = ImportOptions(repos, agent_timeout, verifier_timeout)
        with console.status("importing", spinner_style="dim") as status:
            report = import_pool(
                importer, source, target, options, lambda n, bad: status.update(f"{n} tasks, {bad} rejected")
            )
        print_import(console, report, target)
    if report.index is None:
        raise typer.Exit(1)


@pool_app.command()
def export(
    index: Index, target: Annotated[Path, typer.Argument(help="The folder to write, one task folder a task")]
) -> None:
    """Write the tasks of an index as a folder that Harbor runs, and `import harbor` reads back."""
    from flows.pool_view import rejected_table
    from harness.pool.importers import export_pool
    from harness.pool.index import read_index

    with clear_errors():
        done, rejected = export_pool(read_index(index), target)
        if rejected:
            console.print(rejected_table(rejected))
        say(f"{len(done)} tasks in {target}" + (f", {len(rejected)} left out" if rejected else ""))
    if rejected:
        raise typer.Exit(1)


def _import_plugins(names: list[str] | None) -> None:
    if names:
        from flows.config import import_plugin  # takes the learner's and the engine's sections along

        for name in names:
            import_plugin(name)


def say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
