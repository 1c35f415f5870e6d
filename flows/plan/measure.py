"""A profile from a run's journal: what its trials, updates and syncs took."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.optimize import nnls

from flows.plan.engine_speed import busy_seconds, engine_speed
from flows.plan.profile import PlanError, Profile, TrialShape
from tasks.draw import GREEDY
from tasks.journal import Journal, read_json, step_label
from tasks.trial_table import TABLE, read_trial_folders
from trainer.placement import cpu_threads
from trainer.rollout import Outcome


def measure(root: Path, name: str, *, skip: int = 1) -> Profile:
    """The profile of the run in `root/name`, without its first `skip` steps, in which engines warm up.

    Raises:
        PlanError: there is no such run, or it has recorded too few steps.
    """
    journal = Journal(root / name)
    config = read_json(journal.root / "config.json")
    if config is None:
        raise PlanError(f"--from {name}: there is no such run in {root}; name it as project/experiment, and --root")
    steps = journal.finished_steps()[skip:]
    if not steps:
        raise PlanError(
            f"--from {name}: it has recorded no step after the first {skip}; let it run on, or state figures"
        )
    metrics = [journal.stage(step_label(step), "record.json")["metrics"] for step in steps]  # type: ignore[index]
    tables = [_rows(journal, step) for step in steps]
    trials = [row for rows in tables for row in rows]
    settings = config["config"]
    sampled = sum(row["response_length"] for row in trials)
    trained = [_trained_tokens(values) for values in metrics]
    ahead, between = settings.get("mode", "sync") != "sync", _between(journal, steps, metrics)
    base, per_token, spread = _update(trained, [_learning(values) for values in metrics])
    return Profile(
        source=f"run {name}, steps {steps[0]} to {steps[-1]}",
        groups=_groups(trials),
        engine=engine_speed(tables, settings["serving"]["replicas"]),
        update_base=base,
        update_token=per_token,
        batch_tokens=sum(trained) / max(sampled, 1),
        update_spread=spread,
        sync=tuple(values["timing_s/update_weights"] for values in metrics),
        overhead=tuple(between + _overhead(values, rows, ahead) for values, rows in zip(metrics, tables, strict=True)),
        turns_of_devices=float(np.mean([_turns(values) for values in metrics])),
        infra_failures=_failures(trials),
        train_nodes=settings["learner"].get("nodes", 1),
        engine_share=_share(settings["serving"], settings["serving"]["replicas"]),
        learner_share=_share(settings["learner"], settings["learner"]["ranks"]),
        trial_share=_trial_share(metrics, tables, settings, ahead),
    )


def _rows(journal: Journal, step: int) -> list[dict[str, Any]]:
    """A step's trials that were sampled for training, as rows of its table."""
    path = journal.stage_dir(step_label(step)) / TABLE
    try:
        table: pa.Table = pq.read_table(path)
    except FileNotFoundError:
        table, _ = read_trial_folders(journal.trials_dir(step_label(step)))
    rows = [row for row in table.to_pylist() if not row["group_id"].endswith(GREEDY)]
    if not rows:
        raise PlanError(f"{path.parent} tells of no trial: it was thinned or damaged; plan from another run")
    return [{key: 0.0 if value is None and key in _SECONDS else value for key, value in row.items()} for row in rows]


_SECONDS = frozenset(
    {"queue", "retries", "sandbox_start", "agent", "generate", "patch", "sandbox_stop", "grading", "started_at"}
)


def _groups(trials: Sequence[Mapping[str, Any]]) -> tuple[tuple[TrialShape, ...], ...]:
    """Shapes by group. Those that infrastructure broke tell nothing of the work."""
    shapes: dict[str, list[TrialShape]] = {}
    for row in trials:
        if row["outcome"] != Outcome.INFRA_ERROR and row["turns"]:
            shapes.setdefault(row["group_id"], []).append(
                TrialShape(
                    turns=row["turns"],
                    tokens=row["response_length"],
                    setup=row["sandbox_start"],
                    tools=max(row["agent"] - row["generate"], 0.0),
                    finish=row["patch"] + row["sandbox_stop"],
                    grading=row["grading"],
                )
            )
    if not shapes:
        raise PlanError("no trial of the run had a turn; plan from another run, or state figures")
    return tuple(map(tuple, shapes.values()))


def _trained_tokens(metrics: Mapping[str, float]) -> float:
    """Tokens that an update read, prompts included as far as they were computed."""
    return metrics.get("actor/update_tokens") or metrics.get("perf/total_num_tokens", 0.0)


def _update(tokens: Sequence[float], seconds: Sequence[float]) -> tuple[float, float, tuple[float, ...]]:
    """Seconds of an update without tokens, for each token, and by which factors the updates differed from that."""
    (base, per_token), _ = nnls(np.array([(1.0, count) for count in tokens]), np.array(seconds))
    expected = [base + per_token * count for count in tokens]
    spread = tuple(took / guess if guess else 1.0 for took, guess in zip(seconds, expected, strict=True))
    return float(base), float(per_token), spread


def _overhead(metrics: Mapping[str, float], rows: Sequence[Mapping[str, Any]], ahead: bool) -> float:
    """Seconds of a step in which no trial ran or was graded, no update and no sync was made.

    Trials that were sampled ahead ran at any time; the step knows how long it waited for them.
    """
    waited = metrics["timing_s/gen"] if ahead else _span(rows)
    known = waited + _learning(metrics) + metrics["timing_s/update_weights"] + _turns(metrics)
    return max(metrics["timing_s/step"] - known, 0.0)


def _span(rows: Sequence[Mapping[str, Any]]) -> float:
    """Seconds from the first trial's beginning to the last verdict."""
    parts = ("sandbox_start", "agent", "patch", "sandbox_stop", "grading")
    ended = max(row["started_at"] + sum(row[part] for part in parts) for row in rows)
    return float(ended - min(row["started_at"] for row in rows))


def _between(journal: Journal, steps: Sequence[int], metrics: Sequence[Mapping[str, float]]) -> float:
    """Seconds between a step's end and the next one's beginning, the median: checkpoints and evaluations are rare."""
    written = [(journal.stage_dir(step_label(step)) / "record.json").stat().st_mtime for step in steps]
    gaps = np.diff(written) - [values["timing_s/step"] for values in metrics[1:]]
    return max(float(np.median(gaps)), 0.0) if len(gaps) else 0.0


def _share(section: Mapping[str, Any], actors: int) -> float:
    """Part of this machine that these actors take, by their threads; all of it if nobody bounds those."""
    threads = section.get("threads")
    return 1.0 if threads is None else min(threads * actors / cpu_threads(), 1.0)


def _trial_share(
    metrics: Sequence[Mapping[str, float]],
    tables: Sequence[Sequence[Mapping[str, Any]]],
    settings: Mapping[str, Any],
    ahead: bool,
) -> float:
    """Part of this machine that was taken while trials ran, by all but engines and learner; 0 if nobody measured it.

    The flow and what it started are the least of it; servers, proxies and Ray's processes are of the rest.
    """
    cores, serving = cpu_threads(), settings["serving"]
    used = sum(values.get("perf/cpu_seconds/flow", 0.0) for values in metrics)
    whole = sum(values.get("perf/cpu_seconds/machine", 0.0) for values in metrics)
    learner = sum(map(_learning, metrics)) * _share(settings["learner"], settings["learner"]["ranks"]) * cores
    engines = busy_seconds(tables, serving["replicas"]) * min(serving.get("threads") or cores, cores)
    used = max(used, whole - learner - engines)
    ran = sum(values["timing_s/step"] for values in metrics) if ahead else sum(map(_span, tables))
    return used / ran / cores if ran else 0.0


def _learning(metrics: Mapping[str, float]) -> float:
    """Seconds of a step in which the learner computed, scores included."""
    return metrics.get("timing_s/score", 0.0) + metrics["timing_s/update_actor"]


def _turns(metrics: Mapping[str, float]) -> float:
    return metrics.get("timing_s/learner_turn", 0.0) + metrics.get("timing_s/replicas_turn", 0.0)


def _failures(trials: Sequence[Mapping[str, Any]]) -> float:
    """Share of attempts that infrastructure broke."""
    attempts = sum(row["attempt"] for row in trials)
    return sum(row["attempt"] - (row["outcome"] != Outcome.INFRA_ERROR) for row in trials) / attempts
