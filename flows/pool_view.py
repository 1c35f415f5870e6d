"""Pools as people read them: tables of indexes, tasks, counts, and of what an import could not take."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from harness.pool.difficulty import LABELS, PassCount, Selection, histogram
from harness.pool.importers import IMPORTERS, ImportReport, Rejected
from harness.pool.importers.run import REJECTED
from harness.pool.index import PoolError, TaskPointer, read_index
from harness.pool.index_tools import Finding, columns, counts, pass_rates, repository_of
from harness.pool.task import TaskError, read_task_config

_SHOWN = 20
_BAR = 40
_USUAL_KEYS = ("data_source", "repository", "kind", "difficulty", "band", "language", "split")


def indexes_table(folder: Path) -> Table:
    """The indexes below a folder.

    Raises:
        PoolError: there is no such folder, or no index in it.
    """
    files = sorted(folder.rglob("*.parquet")) if folder.is_dir() else []
    table = _table("index", "tasks", "repositories", "source", "kind", "split", "measured", right=(1, 2, 6))
    for file in files:
        try:
            rows = read_index(file, absent_tasks=True)
        except PoolError:
            continue  # some other table
        facts = [", ".join(_short(counts(rows, key))) for key in ("data_source", "kind", "split")]
        table.add_row(
            str(file.relative_to(folder)),
            str(len(rows)),
            str(len(set(map(repository_of, rows)))),
            *facts,
            str(len(pass_rates(rows))),
        )
    if not table.row_count:
        raise PoolError(f"{folder}: no indexes in it; build one with `testgrad pool kata`, or import a data set")
    return table


def tasks_table(rows: Sequence[TaskPointer]) -> Table:
    """One row a task, with the keys that any of them has."""
    known = columns(rows)
    keys = [key for key in ("kind", "difficulty", "pass_rate", "split", "language", "bug", "ready") if key in known]
    table = _table("task", "repository", *keys)
    for row in rows:
        cells = [_cell(row.extra.get(key)) for key in keys]
        table.add_row(Text(row.instance_id), Text(repository_of(row)), *map(Text, cells))
    return table


def show_task(console: Console, rows: Sequence[TaskPointer], instance: str) -> None:
    """All that is worth knowing of one task.

    Raises:
        PoolError: no id, or more than one, begins so.
    """
    row = _find(rows, instance)
    table = Table.grid(padding=(0, 2))
    table.add_row("task", Text(row.instance_id, style="bold"))
    table.add_row("folder", Text(str(row.task_path)))
    for key, value in {"data_source": row.data_source, **row.extra}.items():
        table.add_row(Text(key), Text(_cell(value)))
    try:
        config = read_task_config(row.task_path)
    except TaskError as error:
        console.print(table)
        console.print(f"unusable: {error}", markup=False, highlight=False, soft_wrap=True)
        return
    for key in ("fail_to_pass", "pass_to_pass"):
        tests = [str(test) for test in config.metadata.get(key, [])]
        more = f"\n… {len(tests) - _SHOWN} more" if len(tests) > _SHOWN else ""
        table.add_row(key, Text("\n".join(tests[:_SHOWN]) + more if tests else "-"))
    console.print(table)
    console.print()
    console.print(Markdown((row.task_path / "instruction.md").read_text(encoding="utf-8", errors="replace")))


def print_stats(console: Console, rows: Sequence[TaskPointer], keys: Sequence[str]) -> None:
    """Counts by each key (none: the usual ones that the rows have), and the histogram of pass rates.

    Raises:
        PoolError: no row has a key that was asked for.
    """
    known = {*columns(rows), "data_source", "repository"}
    if unknown := [key for key in keys if key not in known]:
        raise PoolError(f"no task has {unknown[0]!r}; the index has: {', '.join(sorted(known))}")
    console.print(f"{len(rows)} tasks, {len(set(map(repository_of, rows)))} repositories", highlight=False)
    for key in keys or [key for key in _USUAL_KEYS if key in known]:
        table = _table(key, "tasks", "", right=(1,))
        found = counts(rows, key)
        for value, count in list(found.items())[:_SHOWN]:
            table.add_row(Text(value), str(count), _bar(count, max(found.values())))
        if len(found) > _SHOWN:
            table.add_row(f"… {len(found) - _SHOWN} more", str(sum(list(found.values())[_SHOWN:])), "")
        console.print()
        console.print(table)
    rates = pass_rates(rows)
    if rates:
        table = _table("pass rate", "tasks", "", right=(1,))
        parts = histogram(rates)
        for name, count in parts:
            table.add_row(name, str(count), _bar(count, max(count for _, count in parts)))
        console.print()
        console.print(table)


def print_selection(
    console: Console, rows: Sequence[TaskPointer], trials: Mapping[str, PassCount], selection: Selection
) -> None:
    """How the tasks' pass rates are spread, and what became of all trials."""
    measured = [*selection.kept, *selection.outside]
    found = counts(measured, "band")
    kept = counts(selection.kept, "band")
    table = _table("band", "tasks", "kept", "", right=(1, 2))
    for name in LABELS:
        count = found.get(name, 0)
        table.add_row(name, str(count), str(kept.get(name, 0)), _bar(count, max(found.values(), default=0)))
    table.add_row("unmeasured", str(len(selection.unmeasured)), "0", "")
    console.print(table)
    known = {row.instance_id for row in rows}
    mine = [count for name, count in trials.items() if name in known]
    console.print(
        f"{sum(c.trials for c in mine)} trials count; left out: {sum(c.infra for c in mine)} lost to infrastructure, "
        f"{sum(c.ungraded for c in mine)} ungraded, {len(trials) - len(mine)} tasks of other indexes",
        highlight=False,
        soft_wrap=True,
    )


def split_table(train: Sequence[TaskPointer], heldout: Sequence[TaskPointer]) -> Table:
    """What a split came to."""
    total = len(train) + len(heldout)
    table = _table("side", "tasks", "share", "repositories", right=(1, 2, 3))
    for name, rows in (("train", train), ("heldout", heldout)):
        repositories = set(map(repository_of, rows))
        table.add_row(name, str(len(rows)), f"{len(rows) / total:.1%}", str(len(repositories)))
    return table


def findings_table(findings: Sequence[Finding]) -> Table:
    """What `validate` found, the worst first; many alike are shown once with their number."""
    order = {"error": 0, "pending": 1, "warning": 2}
    table = _table("task", "", "what")
    for finding in sorted(findings, key=lambda f: order[f.level])[:_SHOWN]:
        table.add_row(Text(finding.instance_id), finding.level, Text(finding.text))
    if len(findings) > _SHOWN:
        table.add_row(f"… {len(findings) - _SHOWN} more", "", "")
    return table


def rejected_table(rejected: Sequence[Rejected]) -> Table:
    """What is no task, and why."""
    table = _table("rejected", "where", "why")
    for entry in rejected[:_SHOWN]:
        table.add_row(Text(entry.instance_id), Text(entry.origin), Text(entry.reason))
    if len(rejected) > _SHOWN:
        table.add_row(f"… {len(rejected) - _SHOWN} more", "", "")
    return table


def importers_table() -> Table:
    """The data sets that can be imported."""
    table = _table("importer", "reads")
    for name in sorted(IMPORTERS):
        table.add_row(name, Text(IMPORTERS[name].about))
    return table


def print_import(console: Console, report: ImportReport, target: Path) -> None:
    """What an import took, what it could not take and why, and what to know of the tasks it wrote."""
    if report.rejected:
        console.print(rejected_table(report.rejected))
        console.print()
    noted = Counter(note.partition(", e.g. ")[0] for notes in report.notes.values() for note in notes)
    if noted:
        table = _table("note", "tasks", right=(1,))
        for text, count in noted.most_common(_SHOWN):
            table.add_row(Text(text), str(count))
        console.print(table)
        console.print()
    pending = sum(row.extra.get("ready") is False for row in report.pointers)
    parts = [f"{len(report.pointers)} tasks"]
    parts += [f"{report.reused} of them written before"] * bool(report.reused)
    parts += [f"{pending} pending, their snapshots still in their images"] * bool(pending)
    parts += [f"{len(report.rejected)} rejected, see {target / REJECTED}"] * bool(report.rejected)
    place = f" in {report.index}" if report.index else ""
    console.print("; ".join(parts) + place, markup=False, highlight=False, soft_wrap=True)


def _find(rows: Sequence[TaskPointer], instance: str) -> TaskPointer:
    exact = [row for row in rows if row.instance_id == instance]
    found = exact or [row for row in rows if row.instance_id.startswith(instance)]
    if len(found) != 1:
        some = ", ".join(row.instance_id for row in found[:3])
        raise PoolError(f"{len(found)} tasks begin with {instance!r}{': ' + some if some else ''}; name one in full")
    return found[0]


def _table(*names: str, right: Iterable[int] = ()) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number in set(right) else "left", overflow="fold")
    return table


def _short(found: dict[str, int]) -> list[str]:
    names = [name for name in found if name != "-"]
    return [*names[:2], f"{len(names) - 2} more"] if len(names) > 3 else names or ["-"]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _bar(count: int, most: int) -> str:
    return "█" * max(round(_BAR * count / most), bool(count)) if most else ""
