"""A collection: trials of one policy over an index, outside of any training; its settings, its folder, what is missing.

    collections/NAME/               config.json asked.json tasks.json groups.parquet rates.parquet trials.parquet
                                    record.json report.md report.png
    collections/NAME/trials/collect/<session>/   a trial's files, as in a run

A trial that is graded is never repeated. One that infrastructure broke has not been made: its folder stays as a record,
and the next call of the same collection makes it again.
"""

import hashlib
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from harness.budgets import BudgetConfig
from harness.pool.index import TaskPointer
from harness.sandbox import SandboxConfig
from harness.scaffolds.base import ScaffoldConfig
from harness.verifier import Status, VerifierConfig
from tasks.draw import Group, as_groups, groups_path, groups_table
from tasks.journal import read_json, write_json, write_table
from tasks.run import RunRef
from tasks.trial_files import StoredTrial, load_trial
from trainer.rollout import Outcome, Sampling

LABEL = "collect"
"""The round that all trials of a collection belong to."""

_TASKS = "tasks.json"


class CollectionError(ValueError):
    """A collection that cannot go on, since its tasks changed meanwhile."""


class CollectionSettings(BaseModel):
    """How trials are made and graded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sampling: Sampling = Field(description="How the policy samples, as in training")
    window: int = Field(2048, ge=16, description="Longest sequence, prompt and answer together, in tokens")
    scaffold: ScaffoldConfig = Field(ScaffoldConfig(), description="The agent")
    sandbox: SandboxConfig = Field(SandboxConfig(), description="Where the agent works")
    verifier: VerifierConfig = Field(VerifierConfig(), description="How patches are graded")
    budgets: BudgetConfig = Field(BudgetConfig(), description="How long each stage of a trial may take")
    concurrency: int = Field(64, ge=1, description="Trials at once, their grading included")
    infra_attempts: int = Field(3, ge=1, description="Tries of a trial that fails for reasons the policy cannot cause")
    lost_in_a_row: int = Field(
        20,
        ge=1,
        description="Stop when so many trials (and twice as many as run at once), one after the other, are lost to "
        "infrastructure",
    )


@dataclass(frozen=True)
class Standing:
    """What there is of a collection: trials by what became of them, counted by group where they count.

    `ungraded` ones ended but have no verdict that counts; they are graded, not made again.
    """

    passed: Counter[str]
    failed: Counter[str]
    ungraded: Sequence[StoredTrial]
    lost: int

    @property
    def ended(self) -> Counter[str]:
        """Trials by group that need not be made."""
        return self.passed + self.failed + Counter(trial.group_id for trial in self.ungraded)


def standing(run: RunRef, groups: Sequence[Group]) -> Standing:
    """What the journal holds by now of these groups."""
    wanted = {group.group_id for group in groups}
    passed, failed = Counter[str](), Counter[str]()
    ungraded: list[StoredTrial] = []
    lost = 0
    for folder in run.journal.trials(LABEL):
        trial = load_trial(folder)
        if trial.group_id not in wanted:
            continue
        if trial.outcome is Outcome.INFRA_ERROR:
            lost += 1
        elif trial.verdict is None or trial.verdict.status is Status.INFRA_ERROR:
            ungraded.append(trial)
        else:
            (passed if trial.verdict.status is Status.PASSED else failed)[trial.group_id] += 1
    return Standing(passed, failed, ungraded, lost)


def missing(groups: Sequence[Group], ended: Counter[str]) -> list[Group]:
    """One entry for each trial still to be made, attempt by attempt over all tasks.

    So a collection that is stopped early knows a little of every task rather than all of a few.
    """
    most = max((group.attempts for group in groups), default=0)
    return [group for attempt in range(most) for group in groups if ended[group.group_id] <= attempt < group.attempts]


def write_groups(run: RunRef, tasks: Sequence[TaskPointer], attempts: int) -> list[Group]:
    """Write groups.parquet: what the collection is to have. Other tasks' trials stay, and wait to be asked for again.

    Raises:
        CollectionError: a task is another than when trials of it were made.
    """
    _require_same(run, {task.instance_id: _digest(task) for task in tasks})
    groups = as_groups(tasks, LABEL, attempts)
    write_table(groups_path(run.journal.root), groups_table(groups))
    return groups


def remove_half_written(run: RunRef) -> int:
    """Remove the folders of trials that never ended, left by a process that was killed. Returns their number.

    Only for the holder of the collection: a trial that is being written looks the same.
    """
    folder = run.journal.trials_dir(LABEL)
    ended = set(run.journal.trials(LABEL))
    half = [path for path in folder.iterdir() if path not in ended] if folder.is_dir() else []
    for path in half:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return len(half)


def _digest(task: TaskPointer) -> str:
    """Of what a task asks and which tests it wants: another bug under the same id has others."""
    digest = hashlib.sha256()
    for name in ("instruction.md", "task.toml"):
        digest.update((task.task_path / name).read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _require_same(run: RunRef, found: dict[str, str]) -> None:
    path = run.journal.root / _TASKS
    known = read_json(path) or {}
    changed = sorted(name for name in known.keys() & found.keys() if known[name] != found[name])
    if changed:
        raise CollectionError(
            f"{len(changed)} tasks of {run.name} changed since their trials were made, the first {changed[0]}; "
            "choose another name for the collection, or put the pool back as it was"
        )
    write_json(path, known | found)
