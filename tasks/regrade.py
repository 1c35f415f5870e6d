"""Grade the patches of a finished evaluation again: no model, no agent, the hidden tests and the sandbox of today.

Low scores are more often the grading's doing than the policy's; this settles it. New verdicts are written beside the
old ones until every patch has one, then all are swapped. What was there before stays as verdict.before_N.json and
record.before_N.json, N from 1. A regrading that was stopped goes on where it stopped.
"""

import asyncio
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.budgets import BudgetConfig
from harness.grading import grade_with_retries
from harness.pool.task import Task
from harness.reaper import reaping
from harness.sandbox import SandboxConfig
from harness.sandbox.owner import owned_by
from harness.verifier import VerifierConfig
from harness.verifier.verdict import Status, Verdict
from tasks.draw import Group, read_groups
from tasks.evaluation import summarise
from tasks.groups import task_group
from tasks.journal import eval_label, read_json, write_json, write_text
from tasks.run import RunRef
from tasks.snapshots import FILE, snapshot_digest, snapshot_digests
from tasks.trial_files import StoredTrial, load_trial
from tasks.trial_table import write_trial_table
from trainer.rollout import Outcome

NEW = "verdict.new.json"
STATE = "regrade.json"
"""In the evaluation's folder while a regrading is under way: what it grades with, and which number it has."""


class RegradeError(ValueError):
    """An evaluation whose patches cannot be graded again as they stand."""


@dataclass(frozen=True)
class Regraded:
    """What came of it: verdicts as `before -> after` with their number, and how many could not be graded.

    `swapped` is False if any could not: the old verdicts are then still those that count.
    """

    step: int
    graded: int
    changes: Mapping[str, int]
    failed: int
    swapped: bool
    before: Mapping[str, Any]
    after: Mapping[str, Any]


async def regrade(
    run: RunRef,
    step: int,
    sandbox: SandboxConfig,
    verifier: VerifierConfig,
    budgets: BudgetConfig,
    *,
    concurrency: int,
    infra_attempts: int,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Regraded:
    """Grade the evaluation after `step` again. `tell` is called with the patches done, and those there are.

    Raises:
        RegradeError: the evaluation is not finished, another regrading is at work, or a snapshot is not what it was.
        TaskError: a task is no task any more.
    """
    label = eval_label(step)
    folder = run.journal.stage_dir(label)
    before = read_json(folder / "record.json")
    if before is None:
        raise RegradeError(f"{run.name} has no finished evaluation after step {step}; see {folder.parent}")
    with _alone(folder):
        state = await asyncio.to_thread(_begin, run, label, sandbox, verifier)
        groups = {group.group_id: group for group in read_groups(folder / "groups.parquet")}
        trials = [load_trial(path) for path in run.journal.trials(label)]
        gradable = [trial for trial in trials if trial.outcome is not Outcome.INFRA_ERROR]
        if lost := [trial.session_id for trial in gradable if not (trial.folder / "patch.json").is_file()]:
            raise RegradeError(f"the patches of {len(lost)} of {len(gradable)} trials are gone, the first of {lost[0]}")
        if not state["swapping"]:
            failed = await _grade_all(
                run, gradable, groups, sandbox, verifier, budgets, concurrency, infra_attempts, tell
            )
            if failed:
                return Regraded(step, len(gradable) - failed, {}, failed, False, before, before)
            # the tests were read all the while; what they were run on must be what the patches were taken from
            await asyncio.to_thread(_require_snapshots, folder, groups)
            state = state | {"swapping": True, "changes": _changes(gradable)}
            write_json(folder / STATE, state)
        await asyncio.to_thread(_swap, run, label, step, gradable, state["number"])
    kept = read_json(folder / f"record.before_{state['number']}.json")
    return Regraded(step, len(gradable), state["changes"], 0, True, kept or {}, read_json(folder / "record.json") or {})


async def _grade_all(
    run: RunRef,
    trials: list[StoredTrial],
    groups: Mapping[str, Group],
    sandbox: SandboxConfig,
    verifier: VerifierConfig,
    budgets: BudgetConfig,
    concurrency: int,
    infra_attempts: int,
    tell: Callable[[int, int], None],
) -> int:
    """Grade what has no new verdict yet; how many trials infrastructure kept from getting one."""
    limit = asyncio.Semaphore(concurrency)
    waiting = [trial for trial in trials if not (trial.folder / NEW).is_file()]
    done, failed = len(trials) - len(waiting), 0
    tell(done, len(trials))

    async def one(trial: StoredTrial) -> None:
        nonlocal done, failed
        async with limit:
            loaded = await asyncio.to_thread(Task.load, groups[trial.group_id].task_path)
            verdict = await grade_with_retries(
                loaded, trial.patch(), sandbox, verifier, budgets, attempts=infra_attempts, trial=trial.session_id
            )
        if verdict.status is Status.INFRA_ERROR:
            failed += 1
            return
        # in this thread: one that writes on after a failure would write into the next regrading
        write_text(trial.folder / NEW, verdict.to_json())
        done += 1
        tell(done, len(trials))

    with owned_by(project=run.project, run=run.experiment):
        async with reaping(sandbox), task_group() as gradings:
            for trial in waiting:
                gradings.create_task(one(trial))
    return failed


def _begin(run: RunRef, label: str, sandbox: SandboxConfig, verifier: VerifierConfig) -> dict[str, Any]:
    """The state of this regrading: the one that was stopped if it graded alike, else a new one."""
    folder = run.journal.stage_dir(label)
    stored = read_json(folder / STATE)
    if stored is not None and stored["swapping"]:
        return dict(stored)
    groups = {group.group_id: group for group in read_groups(folder / "groups.parquet")}
    _require_snapshots(folder, groups)
    settings = {"sandbox": sandbox.model_dump(mode="json"), "verifier": verifier.model_dump(mode="json")}
    identity = hashlib.sha256(json.dumps([settings, _gradings(groups)], sort_keys=True).encode()).hexdigest()[:32]
    if stored is not None and stored["identity"] == identity:
        return dict(stored)
    for path in run.journal.trials_dir(label).glob(f"*/{NEW}"):
        path.unlink()
    number = 1 + len(list(folder.glob("record.before_*.json")))
    state = {"identity": identity, "number": number, "swapping": False, "changes": {}}
    write_json(folder / STATE, state)
    return state


def _require_snapshots(folder: Path, groups: Mapping[str, Group]) -> None:
    recorded = read_json(folder / FILE)
    if recorded is None:
        raise RegradeError(
            f"{folder} has no {FILE}, so nothing tells whether its patches still fit; evaluate again with a model"
        )
    found = snapshot_digests({group.task_id: group.task_path for group in groups.values()})
    changed = sorted(name for name, digest in found.items() if recorded.get(name) != digest)
    if changed:
        raise RegradeError(
            f"the snapshots of {len(changed)} of {len(found)} tasks changed since their patches were taken, the first "
            f"{changed[0]}; put the pool back as it was, or evaluate again with a model"
        )


def _gradings(groups: Mapping[str, Group]) -> dict[str, list[str]]:
    """What decides a verdict besides the snapshot, by task: its task.toml and its hidden tests."""
    return {
        group.task_id: [
            hashlib.sha256((group.task_path / "task.toml").read_bytes()).hexdigest(),
            snapshot_digest(group.task_path / "tests"),
        ]
        for group in groups.values()
    }


def _changes(trials: list[StoredTrial]) -> dict[str, int]:
    changes: Counter[str] = Counter()
    for trial in trials:
        new = Verdict.from_json((trial.folder / NEW).read_text())
        changes[f"{trial.verdict.status if trial.verdict else 'none'} -> {new.status}"] += 1
    return dict(sorted(changes.items()))


def _swap(run: RunRef, label: str, step: int, trials: list[StoredTrial], number: int) -> None:
    """Put the new verdicts and their record in place. Each step may have been done before a crash."""
    folder = run.journal.stage_dir(label)
    for trial in trials:
        new, kept = trial.folder / NEW, trial.folder / f"verdict.before_{number}.json"
        if new.is_file():
            if trial.verdict is not None and not kept.is_file():
                write_text(kept, (trial.folder / "verdict.json").read_text())
            os.replace(new, trial.folder / "verdict.json")
    graded = [load_trial(path) for path in run.journal.trials(label)]
    record = {"step": step, "regraded": number} | summarise(graded, read_groups(folder / "groups.parquet"))
    kept = folder / f"record.before_{number}.json"
    if not kept.is_file():
        write_text(kept, (folder / "record.json").read_text())
    write_trial_table(run.journal, label)
    write_json(folder / "record.json", record)
    (folder / STATE).unlink()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with open(folder / ".regrade.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RegradeError(f"{folder} is being graded again by another process; wait for it, or stop it") from error
        yield
