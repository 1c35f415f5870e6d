"""Groups that are sampled ahead of their step, as the journal has them: drawn, and later taken by a step or dropped.

A draw has its groups in draws/draw_000012 and its trials in trials/draw_000012. The step that takes a group says so in
its taken.json, once and for all; what follows from that (the step's groups.parquet, and the group's trials among the
step's) is done again until it is done. So every later stage finds a step as one in mode sync leaves it.
"""

import os
from collections.abc import Iterable, Sequence

from harness.pool.sampler import SamplerConfig, draw_tasks
from tasks.config import DataConfig, RolloutConfig
from tasks.draw import GREEDY, Group, as_groups, groups_path, groups_table, read_groups, read_pool
from tasks.infra_limit import make_lost_again
from tasks.journal import Journal, step_label, write_table
from tasks.rollout_ledger import Pace, RolloutLedger, Taken
from tasks.run import RunRef
from tasks.sampler_state import state_before
from tasks.trial_files import StoredTrial, load_trial
from trainer.rollout import NO_VERSION, Outcome

TAKEN = "taken.json"


def draw_label(number: int) -> str:
    """`draw_000012`"""
    return f"draw_{number:06d}"


def draw_groups(
    run: RunRef,
    number: int,
    finished: int,
    data: DataConfig,
    rollout: RolloutConfig,
    sampler: SamplerConfig,
    greedy: bool,
) -> None:
    """Write groups.parquet of draw `number`, from 1: the tasks of step `number` in mode sync, where the sampler asks
    nothing of earlier steps; an adaptive one knows the `finished` ones."""
    path = groups_path(run.journal.stage_dir(draw_label(number)))
    if not path.is_file():
        pool = read_pool(data.train_index(run.root), data.difficulty)
        state = state_before(run, finished + 1, sampler)
        tasks = draw_tasks(pool, rollout.tasks_per_step, number, data.seed, sampler, state, rollout.attempts_per_task)
        write_table(path, groups_table(as_groups(tasks, draw_label(number), rollout.attempts_per_task, greedy)))


def draw_of(unit: str) -> str:
    """The label of the draw that a group is of: its id begins with it."""
    return unit.partition("/")[0]


def units_of(journal: Journal, draw: str) -> dict[str, list[Group]]:
    """The groups of a draw by id, each with the greedy trial that goes with it if there is one."""
    units: dict[str, list[Group]] = {}
    for group in read_groups(groups_path(journal.stage_dir(draw))):
        units.setdefault(group.baseline_of, []).append(group)
    return units


def read_taken(journal: Journal) -> list[Taken]:
    """What steps have taken, in their order."""
    stored = (journal.stage(step_label(step), TAKEN) for step in journal.finished_steps(TAKEN))
    return [Taken.from_json(taken) for taken in stored if taken is not None]


def settle(journal: Journal, label: str, taken: Taken) -> int:
    """Make the groups that a step took its own: its groups.parquet, and their trials. Returns the number of trials."""
    path = groups_path(journal.stage_dir(label))
    draws = list(dict.fromkeys(map(draw_of, taken.consumed)))
    if not path.is_file():
        units = {unit: groups for draw in draws for unit, groups in units_of(journal, draw).items()}
        write_table(path, groups_table([group for unit in taken.consumed for group in units[unit]]))
    wanted = {group.group_id for group in read_groups(path)}
    journal.trials_dir(label).mkdir(parents=True, exist_ok=True)
    for draw in draws:
        for folder in journal.trials(draw):
            if load_trial(folder).group_id in wanted:
                os.replace(folder, journal.trials_dir(label) / folder.name)
    return len(journal.trials(label))


def restore(run: RunRef, pace: Pace, version: int) -> RolloutLedger:
    """The ledger of a run as far as the journal goes; what steps have taken is made theirs, should that be unfinished.

    Groups whose trials have all ended and are graded are complete; the others are in line again, and so is what was
    lost when infrastructure stopped the run.
    """
    ledger, journal = RolloutLedger(pace, version), run.journal
    drawn: dict[str, list[Group]] = {}
    for number in range(1, next_draw(journal)):
        drawn |= units_of(journal, draw_label(number))
    ledger.submit(list(drawn))
    for taken in read_taken(journal):
        settle(journal, step_label(taken.step), taken)
        ledger.restore(taken)
    for draw in dict.fromkeys(map(draw_of, list(ledger.open))):
        make_lost_again(run, draw)
        trials = trials_by_unit(journal, draw)
        for unit in [unit for unit in ledger.open if draw_of(unit) == draw]:
            if is_complete(drawn[unit], trials.get(unit, [])):
                ledger.restore_complete(unit, oldest_version(trials[unit]))
    return ledger


def next_draw(journal: Journal) -> int:
    """The number of the first draw that has not been made."""
    number = 1
    while groups_path(journal.stage_dir(draw_label(number))).is_file():
        number += 1
    return number


def trials_by_unit(journal: Journal, draw: str) -> dict[str, list[StoredTrial]]:
    """The trials of a draw that have ended, of groups that no step has taken."""
    units: dict[str, list[StoredTrial]] = {}
    for trial in map(load_trial, journal.trials(draw)):
        units.setdefault(trial.group_id.removesuffix(GREEDY), []).append(trial)
    return units


def is_complete(groups: Iterable[Group], trials: Sequence[StoredTrial]) -> bool:
    """Whether all trials of a group have ended, and all that can be graded are."""
    graded = all(trial.outcome is Outcome.INFRA_ERROR or trial.verdict is not None for trial in trials)
    return graded and len(trials) >= sum(group.attempts for group in groups)


def oldest_version(trials: Iterable[StoredTrial]) -> int | None:
    """The weight version of the oldest token that would be trained on; None if nothing was sampled."""
    versions = [v for trial in trials for rollout in trial.rollouts() for v in rollout.weight_versions]
    return min((version for version in versions if version != NO_VERSION), default=None)
