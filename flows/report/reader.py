"""Reads a run's journal for a report, step by step, and believes nothing in it.

Whatever cannot be read is left out and told in `RunData.notes`: the journal may be damaged, partial, or being written
just now. Nothing is written.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flows.report.run_data import Evaluation, GroupResult, Notes, RunData, StageTrials, TrialRow, ranges
from tasks.draw import GREEDY, read_draws
from tasks.journal import Journal, eval_label, step_label
from tasks.trial_table import STAGES, TABLE, TRIAL_SCHEMA, read_object, read_trial_folders

SLOWEST, TAMPERED = 20, 50
_MAX_WARNINGS = 200
_LABEL = re.compile(r"(eval_)?step_(\d{6})")
_STEP_DIR = re.compile(r"step_(\d{6})")
_LOGGED = re.compile(r"step:(\d{1,9}) - (.*)")
_WARNED = re.compile(r"warning \d{1,4} of step \d{1,9}: .*")
_OUTSIDE_AGENT = tuple(stage for stage in STAGES if stage != "generate")
_INFRA = "infra_error"


class ReportError(ValueError):
    """There is nothing to report on."""


def read_run(root: Path, name: str) -> RunData:
    """What the journal in `root/name` says.

    Raises:
        ReportError: there is no such journal.
    """
    journal = Journal(root / name)
    if not journal.root.is_dir():
        known = sorted(f"{folder.parent.parent.name}/{folder.parent.name}" for folder in root.glob("*/*/steps"))
        hint = f"; there are {', '.join(known[:10])}" if known else "; name it as project/experiment, and --root"
        raise ReportError(f"no run {name!r} in {root}{hint}")
    run = RunData(name=name, root=journal.root)
    _read_config(run, journal)
    _read_steps(run, journal)
    _read_trials(run, journal)
    _read_evaluations(run, journal)
    return run


def _read_config(run: RunData, journal: Journal) -> None:
    stored = _object(journal.root / "config.json", run.notes)
    if stored is None:
        run.notes.add("config.json is not there: configuration and versions are not known")
        return
    config, versions = stored.get("config"), stored.get("versions")
    run.config = config if isinstance(config, dict) else {}
    run.about = {str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {}
    run.about = {"commit": str(stored.get("commit")), **run.about}
    schedule = run.config.get("schedule")
    total = schedule.get("total_steps") if isinstance(schedule, dict) else None
    run.total_steps = total if isinstance(total, int) else None
    if run.total_steps is None:
        run.notes.add("config.json does not say schedule.total_steps: whether the run has ended is not known")


def _read_steps(run: RunData, journal: Journal) -> None:
    """Metrics by step from record.json, and from the log where that is damaged or gone."""
    started = _numbers(journal.root / "steps")
    records = {step: _record(journal, step, run.notes) for step in started}
    found = {step: metrics for step, metrics in records.items() if metrics is not None}
    logged, run.warnings = _read_log(journal.logs / f"{journal.root.name}.log", run.notes)
    newest = max(started, default=0)
    lost = [step for step in range(1, newest + 1) if step not in found and (step != newest or step in logged)]
    rescued = [step for step in lost if step in logged]
    if rescued:
        run.notes.add(f"metrics of steps without a record were taken from the log: {ranges(rescued)}")
    if len(rescued) < len(lost):
        gone = ranges(set(lost) - set(rescued))
        run.notes.add(f"no record of these steps, neither in steps/ nor in the log: {gone}")
    found |= {step: logged[step] for step in rescued}
    run.steps = sorted(found)
    if not found:
        run.notes.add("no step has been recorded yet")
    names = sorted({name for metrics in found.values() for name in metrics})
    run.metrics = {name: np.array([found[s].get(name, math.nan) for s in run.steps]) for name in names}
    times = [path.stat().st_mtime for step in run.steps if (path := _record_path(journal, step)).is_file()]
    run.changed_at = max(times, default=None)


def _record(journal: Journal, step: int, notes: Notes) -> dict[str, float] | None:
    record = _object(_record_path(journal, step), notes)
    metrics = record.get("metrics") if record is not None else None
    if record is not None and not isinstance(metrics, dict):
        notes.add(f"record.json of step {step} has no metrics")
        return None
    return {str(name): _float(value) for name, value in metrics.items()} if metrics is not None else None


def _record_path(journal: Journal, step: int) -> Path:
    return journal.stage_dir(step_label(step)) / "record.json"


def _read_log(path: Path, notes: Notes) -> tuple[dict[int, dict[str, float]], list[str]]:
    """Metrics by step, and the newest warnings, from the run's log."""
    steps: dict[int, dict[str, float]] = {}
    warnings: list[str] = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if match := _LOGGED.match(line):
                    pairs = (pair.rpartition(":") for pair in match.group(2).strip().split(" - "))
                    steps[int(match.group(1))] = {name: _float(value) for name, _, value in pairs if name}
                elif _WARNED.match(line):
                    warnings.append(line.strip()[:500])
    except OSError as error:
        notes.add(f"the log cannot be read ({type(error).__name__}): warnings are not known")
    return steps, warnings[-_MAX_WARNINGS:]


def _read_trials(run: RunData, journal: Journal) -> None:
    """Each step's trials, one table at a time."""
    stages: list[StageTrials] = []
    slowest: list[TrialRow] = []
    tampered: list[TrialRow] = []
    for label, step, evaluation in _labels(journal):
        table = _trial_table(journal, label, run.notes)
        if not table.num_rows:
            continue
        recorded = (journal.stage_dir(label) / "record.json").is_file()
        stages.append(_stage(label, step, evaluation, table, None if recorded else _planned(journal, label, run.notes)))
        seconds = np.sum([_column(table, stage) for stage in _OUTSIDE_AGENT], axis=0)
        slowest = _worst([*slowest, *_rows(label, table, np.argsort(-seconds)[:SLOWEST], seconds)])
        bent = [i for i, status in enumerate(table["status"].to_pylist()) if status == "tampered"]
        run.tampered_total += len(bent)
        tampered = [*tampered, *_rows(label, table, bent, seconds)][-TAMPERED:]
    run.trials, run.slowest, run.tampered = stages, slowest, tampered[::-1]
    if not stages:
        run.notes.add("no trial has ended yet, or trials/ is gone")
    absent = ranges(set(run.steps) - {stage.step for stage in stages if not stage.evaluation})
    if stages and absent:
        run.notes.add(f"the trials of these recorded steps are gone: {absent}")
    ungraded = sum(stage.statuses["not graded"] - stage.outcomes[_INFRA] for stage in stages)
    if ungraded > 0:
        run.notes.add(f"{ungraded} trials have no verdict: their grading has not ended, or was lost")


def _labels(journal: Journal) -> list[tuple[str, int, bool]]:
    """Steps and evaluations that have trials or a table of them: label, step, whether it is an evaluation."""
    found = {name for name in _names(journal.root / "trials") if _LABEL.fullmatch(name)}
    found |= {step_label(step) for step in _numbers(journal.root / "steps")}
    found |= {eval_label(step) for step in _numbers(journal.root / "evals")}
    return sorted((label, int(label[-6:]), label.startswith("eval_")) for label in found)


def _trial_table(journal: Journal, label: str, notes: Notes) -> pa.Table:
    """The table that the step ended with, or else what its trial folders say."""
    path = journal.stage_dir(label) / TABLE
    try:
        return pq.ParquetFile(path).read(columns=TRIAL_SCHEMA.names).cast(TRIAL_SCHEMA)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        notes.add(f"{label}: {TABLE} is damaged ({type(error).__name__}); its trials were read one by one")
    try:
        table, problems = read_trial_folders(journal.trials_dir(label))
    except OSError as error:
        notes.add(f"{label}: its trials cannot be read ({type(error).__name__}: {error})")
        return TRIAL_SCHEMA.empty_table()
    if problems:
        notes.add(f"{label}: {len(problems)} of its trials are damaged and left out; the first: {problems[0]}")
    return table


def _stage(label: str, step: int, evaluation: bool, table: pa.Table, planned: int | None) -> StageTrials:
    outcomes, statuses = table["outcome"].to_pylist(), table["status"].to_pylist()
    task_of: dict[str, str] = {}
    solved: Counter[str] = Counter()
    scored: Counter[str] = Counter()
    for group, task, outcome, status in zip(
        table["group_id"].to_pylist(), table["task_id"].to_pylist(), outcomes, statuses, strict=True
    ):
        if group is None or group.endswith(GREEDY):
            continue
        task_of[group] = task or ""
        if status is not None and _INFRA not in (outcome, status):
            scored[group] += 1
            solved[group] += status == "passed"
    seconds: dict[str, float] = {}
    for stage in STAGES:
        total = float(_column(table, stage).sum())
        if total:
            seconds[stage] = total / table.num_rows
    return StageTrials(
        label,
        step,
        evaluation,
        Counter(str(outcome) for outcome in outcomes),
        Counter(status or "not graded" for status in statuses),
        [GroupResult(task, solved[group], scored[group]) for group, task in task_of.items()],
        seconds,
        planned,
    )


def _planned(journal: Journal, label: str, notes: Notes) -> int | None:
    """How many trials the step asks for."""
    try:
        return sum(group.attempts for draw in read_draws(journal.stage_dir(label)) for group in draw)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        notes.add(f"{label}: its groups cannot be read ({type(error).__name__}: {error})")
        return None


def _column(table: pa.Table, name: str) -> np.ndarray:
    """Seconds, 0 where there are none."""
    return np.nan_to_num(table[name].to_numpy(), nan=0.0, posinf=0.0, neginf=0.0)


def _rows(label: str, table: pa.Table, picks: Sequence[int] | np.ndarray, seconds: np.ndarray) -> list[TrialRow]:
    return [TrialRow(label, float(seconds[i]), table.slice(int(i), 1).to_pylist()[0]) for i in picks]


def _worst(rows: list[TrialRow]) -> list[TrialRow]:
    return sorted(rows, key=lambda row: -row.seconds)[:SLOWEST]


def _read_evaluations(run: RunData, journal: Journal) -> None:
    evaluations = []
    for step in _numbers(journal.root / "evals"):
        record = _object(journal.stage_dir(eval_label(step)) / "record.json", run.notes)
        if record is not None:
            evaluations.append(_evaluation(step, record, run.notes))
    run.evaluations = evaluations


def _evaluation(step: int, record: Mapping[str, Any], notes: Notes) -> Evaluation:
    from tasks.evaluation import mean_interval  # brings Prefect along

    clusters = _clusters(record.get("clusters"))
    if not clusters:
        notes.add(f"the validation after step {step} has no rewards by cluster: it is shown without an interval")
    interval = mean_interval(clusters) if clusters else None
    left_out = record.get("left_out")
    return Evaluation(
        step,
        _known(record.get("mean_reward")),
        interval.mean if interval else None,
        interval.low if interval else None,
        interval.high if interval else None,
        _count(record.get("scored")),
        _count(record.get("launched")),
        {int(k[8:]): value for k, v in record.items() if re.fullmatch(r"pass_at_\d{1,4}", k) and (value := _known(v))},
        {str(k): int(_float(v)) for k, v in left_out.items() if _known(v)} if isinstance(left_out, dict) else {},
        clusters,
    )


def _clusters(stored: Any) -> dict[str, list[float]]:
    if not isinstance(stored, dict):
        return {}
    values = {str(name): [_float(v) for v in rewards] for name, rewards in stored.items() if isinstance(rewards, list)}
    return {name: rewards for name, rewards in values.items() if rewards and all(map(math.isfinite, rewards))}


def _object(path: Path, notes: Notes) -> dict[str, Any] | None:
    """The JSON object at `path`, None if there is none that can be read."""
    try:
        return read_object(str(path))
    except (OSError, ValueError, RecursionError) as error:
        notes.add(f"{path.parent.name}/{path.name} cannot be read ({type(error).__name__}: {error})")
        return None


def _numbers(folder: Path) -> list[int]:
    """The steps that have a folder in `folder`."""
    return sorted(int(match.group(1)) for name in _names(folder) if (match := _STEP_DIR.fullmatch(name)))


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []


def _float(value: Any) -> float:
    """The number, NaN if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _known(value: Any) -> float | None:
    number = _float(value)
    return number if math.isfinite(number) else None


def _count(value: Any) -> int | None:
    number = _known(value)
    return int(number) if number is not None else None
