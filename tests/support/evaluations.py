"""A run with a finished evaluation of tasks that are there, as the flow `evaluate` leaves one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.journals import make_result, make_run, make_verdict
from support.tasks import BUGGY, FIXED, write_task

from flows.config import RunConfig
from harness.patch import Patch
from harness.pool.index import TaskPointer
from harness.verifier.verdict import Status
from tasks.draw import as_groups, groups_table, read_groups
from tasks.evaluation import summarise
from tasks.journal import eval_label, write_json, write_table
from tasks.run import RunRef
from tasks.snapshots import FILE, snapshot_digests
from tasks.trial_files import load_trial, store_trial, store_verdict
from trainer.rollout import Outcome

Made = Sequence[tuple[bytes | None, Status | None]]
"""Trials of a task: what it wrote to solution.py, None if infrastructure broke it; and its verdict."""

RIGHT, WRONG = FIXED.encode(), BUGGY.encode()


def write_evaluation(
    root: Path, made: Mapping[str, Made], step: int = 4, experiment: str = "experiment", **config: Any
) -> RunRef:
    """`root/project/experiment` with an evaluation of one task for each of `made`, in `root/pool`."""
    run = make_run(root, experiment=experiment)
    label = eval_label(step)
    folder = run.journal.stage_dir(label)
    pool = [TaskPointer(name, write_task(root / "pool" / name)) for name in made]
    groups = as_groups(pool, label, max(map(len, made.values())))
    write_table(folder / "groups.parquet", groups_table(groups))
    write_json(folder / FILE, snapshot_digests({task.instance_id: task.task_path for task in pool}))
    for name, trials in made.items():
        for i, (content, status) in enumerate(trials):
            broken = content is None
            result = make_result(
                f"{name}-{i}",
                f"{label}/{name}",
                Outcome.INFRA_ERROR if broken else Outcome.COMPLETED,
                patch=None if content is None else Patch({"solution.py": content}),
                started_at=1000.0 + i,
            )
            place = run.journal.trials_dir(label) / result.spec.session_id
            store_trial(place, result)
            if status is not None:
                store_verdict(place, make_verdict(status))
    settings = RunConfig(project=run.project, experiment=run.experiment, **config)
    stored = {"nonce": run.nonce, "identity": settings.identity(), "config": settings.model_dump(mode="json")}
    write_json(run.journal.root / "config.json", stored)
    summarise_again(run, step)
    return run


def summarise_again(run: RunRef, step: int) -> None:
    """Write record.json from the trials that are there."""
    label = eval_label(step)
    folder = run.journal.stage_dir(label)
    trials = [load_trial(path) for path in run.journal.trials(label)]
    write_json(folder / "record.json", {"step": step} | summarise(trials, read_groups(folder / "groups.parquet")))
