"""What trials say of a pool's difficulty, as a text to keep beside the index, with a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.pool_plot import plot_difficulty
from harness.pool.difficulty import LABELS, PassCount, Selection, with_rates
from harness.pool.index import PoolError, TaskPointer
from harness.pool.index_tools import counts as count_by
from tasks.journal import ASKED, read_json, write_text
from tasks.statistics.intervals import wilson

_SHOWN_TASKS = 200


@dataclass(frozen=True)
class Measured:
    """The tasks of an index, the trials of each that count, and which tasks of them a band keeps."""

    rows: Sequence[TaskPointer]
    counts: Mapping[str, PassCount]
    selection: Selection
    band: str
    facts: Mapping[str, str] = field(default_factory=dict)


def trials_folder(name: str, root: Path) -> Path:
    """Where the trials of `name` are: a collection, a run as project/experiment, or a folder.

    Raises:
        PoolError: there are none.
    """
    for place in (Path(name).expanduser(), root / "collections" / name, root / name):
        if (place / "trials").is_dir():
            return place / "trials"
        if place.is_dir() and place != root:
            return place
    raise PoolError(
        f"--from {name}: no such collection, run or folder; name a collection in {root / 'collections'}, a run as "
        "project/experiment, or the folder with the trials"
    )


def facts_of(trials: Path) -> dict[str, str]:
    """What a collection tells of its policy; nothing for other folders."""
    asked = read_json(trials.parent / ASKED) or {}
    if "policy" not in asked:
        return {}
    sampling, scaffold = asked["sampling"], asked["settings"]["scaffold"]
    return {
        "policy": str(asked["policy"]),
        "sampling": f"temperature {sampling['temperature']}, {sampling['max_tokens']} tokens a turn",
        "scaffold": f"{scaffold['name']}, at most {scaffold['max_turns']} answers",
    }


def write_report(path: Path, title: str, measured: Measured) -> Path:
    """Write `path` as text (Markdown), and beside it the histogram as a picture if any task was measured."""
    parts = [f"# {title}", *_facts(measured), _bands(measured), _lost(measured)]
    rows = [row for row in measured.rows if measured.counts.get(row.instance_id, PassCount()).trials]
    if rows:
        picture = plot_difficulty(with_rates(rows, measured.counts), path.with_suffix(".png"))
        parts.append(f"![pass rates]({picture.name})")
    parts.append(_tasks(measured))
    write_text(path, "\n\n".join(parts) + "\n")
    return path


def _facts(measured: Measured) -> list[str]:
    lines = [f"* {name}: {value}" for name, value in measured.facts.items()]
    return ["\n".join(lines)] if lines else []


def _bands(measured: Measured) -> str:
    chosen = measured.selection
    found, kept = count_by([*chosen.kept, *chosen.outside], "band"), count_by(chosen.kept, "band")
    lines = ["| pass rate | tasks | kept |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {found.get(name, 0)} | {kept.get(name, 0)} |" for name in LABELS]
    lines += [f"| unmeasured | {len(chosen.unmeasured)} | 0 |"]
    told = f"{len(chosen.kept)} of {len(measured.rows)} tasks are kept: those with a pass rate in {measured.band}."
    return "\n".join(lines) + f"\n\n{told}"


def _lost(measured: Measured) -> str:
    mine = [measured.counts[row.instance_id] for row in measured.rows if row.instance_id in measured.counts]
    return (
        f"{sum(count.trials for count in mine)} trials count. {sum(count.infra for count in mine)} were lost to "
        f"infrastructure and {sum(count.ungraded for count in mine)} were not graded: these count neither as solved "
        "nor as failed."
    )


def _tasks(measured: Measured) -> str:
    """Tasks that were tried, by rate, with Wilson's 95 % interval: of few trials, a rate says little."""
    kept = {row.instance_id for row in measured.selection.kept}
    tried = [row.instance_id for row in measured.rows if row.instance_id in measured.counts]
    found = [(name, measured.counts[name]) for name in tried]
    found.sort(key=lambda item: (item[1].rate is None, item[1].rate or 0.0, item[0]))
    lines = ["| task | solved | rate | 95 % | lost | kept |", "| --- | ---: | ---: | --- | ---: | --- |"]
    for name, count in found[:_SHOWN_TASKS]:
        lines.append(f"| {name} | {_cells(count)} | {count.infra} | {'yes' if name in kept else ''} |")
    text = "\n".join(lines)
    more = len(found) - _SHOWN_TASKS
    return text + (f"\n\n{more} more tasks were tried." if more > 0 else "")


def _cells(count: PassCount) -> str:
    if not count.trials:
        return "0 of 0 | – | –"
    interval = wilson(count.passes, count.trials)
    return f"{count.passes} of {count.trials} | {interval.mean:.2f} | {interval.low:.2f} to {interval.high:.2f}"


def as_json_values(measured: Measured) -> dict[str, Any]:
    """What a script wants to know of a selection."""
    chosen = measured.selection
    mine = [measured.counts[row.instance_id] for row in measured.rows if row.instance_id in measured.counts]
    return {
        "tasks": len(measured.rows),
        "kept": len(chosen.kept),
        "outside": len(chosen.outside),
        "unmeasured": len(chosen.unmeasured),
        "bands": {name: count_by([*chosen.kept, *chosen.outside], "band").get(name, 0) for name in LABELS},
        "trials": sum(count.trials for count in mine),
        "lost": sum(count.infra for count in mine),
        "ungraded": sum(count.ungraded for count in mine),
    }
