"""What a collection says of each task: how often the policy solved it, of how many trials that count."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from prefect import task
from prefect.cache_policies import NO_CACHE

from harness.pool.difficulty import LABELS, PassCount, TrialEnd, count_passes, label, read_trials
from tasks.collection import LABEL
from tasks.draw import Group, groups_path, read_groups
from tasks.journal import write_json, write_table
from tasks.run import RunRef
from tasks.statistics.intervals import wilson
from tasks.trial_table import TABLE, read_trial_folders

RATES = "rates.parquet"
RATES_SCHEMA = pa.schema(
    [
        ("task_id", pa.string()),
        ("task_path", pa.string()),
        ("wanted", pa.int64()),
        ("n", pa.int64()),
        ("k", pa.int64()),
        ("lost", pa.int64()),
        ("ungraded", pa.int64()),
        ("pass_rate", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("band", pa.string()),
        ("turns", pa.float64()),
        ("tokens", pa.float64()),
    ]
)


@task(name="summarise_collection", cache_policy=NO_CACHE, retries=0)
async def summarise_collection(run: RunRef, done: dict[str, Any]) -> dict[str, Any]:
    """Write rates.parquet, trials.parquet and record.json; returns the record. `done` is what `fill` did just now."""
    return await asyncio.to_thread(_summarise, run, done)


def rates(groups: Sequence[Group], ends: Sequence[TrialEnd], spent: Mapping[str, tuple[float, float]]) -> pa.Table:
    """A row for each task, [tasks], of `RATES_SCHEMA`: `k` of `n` trials that count solved it.

    `low` and `high` are Wilson's 95 % interval. `lost` died of infrastructure: they are in neither `n` nor `k`. `spent`
    has the mean turns and sampled tokens of a trial by task. A task without a trial that counts has no rate.
    """
    counts = count_passes(ends)
    return pa.Table.from_pylist(
        [_row(group, counts.get(group.task_id, PassCount()), spent.get(group.task_id)) for group in groups],
        schema=RATES_SCHEMA,
    )


def summary(table: pa.Table) -> dict[str, Any]:
    """Tasks by band, mean rate, and how much of what was wanted there is, from a table of rates."""
    rows = table.to_pylist()
    measured = [row for row in rows if row["n"]]
    wanted = sum(row["wanted"] for row in rows)
    counted = sum(min(row["n"], row["wanted"]) for row in rows)
    bands = Counter(row["band"] for row in measured)
    mixed = sum(0 < row["k"] < row["n"] for row in measured)
    return {
        "tasks": len(rows),
        "measured": len(measured),
        "mixed": mixed,
        "wanted": wanted,
        "counted": counted,
        "trials": sum(row["n"] for row in rows),
        "solved": sum(row["k"] for row in rows),
        "coverage": counted / wanted if wanted else 0.0,
        "lost": sum(row["lost"] for row in rows),
        "mean_pass_rate": sum(row["pass_rate"] for row in measured) / len(measured) if measured else None,
        "bands": {name: bands[name] for name in LABELS},
        "short": [row["task_id"] for row in rows if row["n"] < row["wanted"]][:20],
    }


def _summarise(run: RunRef, done: dict[str, Any]) -> dict[str, Any]:
    folder = run.journal.root
    groups = read_groups(groups_path(folder))
    trials, problems = read_trial_folders(run.journal.trials_dir(LABEL))
    if problems:
        raise ValueError(f"{run.name}: {problems[0]}")
    ends = list(read_trials(run.journal.trials_dir(LABEL))) if run.journal.trials(LABEL) else []
    table = rates(groups, ends, _spent(trials))
    write_table(folder / RATES, table)
    write_table(folder / TABLE, trials)
    record = summary(table) | {
        "name": run.name, "done": done, "reasons": _reasons(trials),
        "outcomes": dict(Counter(trials.column("outcome").to_pylist())),
    }  # fmt: skip
    write_json(folder / "record.json", record)
    return record


def _row(group: Group, count: PassCount, spent: tuple[float, float] | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "task_id": group.task_id, "task_path": str(group.task_path), "wanted": group.attempts, "n": count.trials,
        "k": count.passes, "lost": count.infra, "ungraded": count.ungraded,
    }  # fmt: skip
    if count.rate is not None:
        interval = wilson(count.passes, count.trials)
        row |= {"pass_rate": count.rate, "low": interval.low, "high": interval.high, "band": label(count.rate)}
    if spent is not None:
        row |= {"turns": spent[0], "tokens": spent[1]}
    return row


def _spent(trials: pa.Table) -> dict[str, tuple[float, float]]:
    """Mean turns and sampled tokens by task, of trials that were not lost."""
    found: dict[str, list[tuple[int, int]]] = {}
    for row in trials.to_pylist():
        if row["outcome"] != "infra_error":
            found.setdefault(row["task_id"], []).append((row["turns"], row["response_length"]))
    return {
        name: (sum(t for t, _ in rows) / len(rows), sum(n for _, n in rows) / len(rows)) for name, rows in found.items()
    }


def _reasons(trials: pa.Table) -> dict[str, int]:
    """Why trials were lost, by the beginning of what broke; the most frequent first."""
    reasons: Counter[str] = Counter()
    for row in trials.to_pylist():
        if row["outcome"] == "infra_error":
            reasons[(row["error"] or "unknown")[:120]] += 1
        elif row["status"] == "infra_error":
            reasons[f"grading: {row['reason'] or 'unknown'}"[:120]] += 1
    return dict(reasons.most_common(10))
