"""What a journal holds that no crash may take away, and whether two journals tell of the same weights."""

from collections import Counter
from dataclasses import dataclass

from tasks.draw import groups_path, read_groups
from tasks.journal import Journal, step_label
from tasks.trial_files import load_trial


class Lost(RuntimeError):
    """A crash has cost what it must not."""


@dataclass(frozen=True)
class Evidence:
    """Trials that have ended by session, each with the time and place of its file, and the weights after each update.

    In which folder a trial lies does not matter: one that was sampled ahead moves to the step that takes it.
    """

    trials: dict[str, tuple[int, int]]
    fingerprints: dict[int, str]

    @staticmethod
    def of(journal: Journal) -> "Evidence":
        """As the journal is now."""
        files = {path: path.stat() for path in (journal.root / "trials").glob("*/*/trial.json")}
        updates = {
            step: journal.stage(step_label(step), "update.json") for step in journal.finished_steps("update.json")
        }
        return Evidence(
            {path.parent.name: (stat.st_ino, stat.st_mtime_ns) for path, stat in files.items()},
            {step: str(update["fingerprint"]) for step, update in updates.items() if update is not None},
        )

    def lost_until(self, later: "Evidence") -> list[str]:
        """Trials that are there no more, or are not the same any more."""
        return [session for session, stat in self.trials.items() if later.trials.get(session) != stat]

    def changed_until(self, later: "Evidence") -> int | None:
        """The first step whose update gave other weights when it was made again."""
        return first_difference(self, Evidence({}, {s: later.fingerprints.get(s, "gone") for s in self.fingerprints}))


def require_each_once(journal: Journal, steps: int) -> None:
    """Raises Lost unless every group of every step has as many trials as were asked for, and is in one step alone."""
    taken: Counter[str] = Counter()
    for step in range(1, steps + 1):
        label = step_label(step)
        wanted = {group.group_id: group.attempts for group in read_groups(groups_path(journal.stage_dir(label)))}
        found = Counter(load_trial(folder).group_id for folder in journal.trials(label))
        if wanted != found:
            raise Lost(f"{label}: trials of each group are {dict(found)}, asked for were {wanted}")
        taken.update(wanted.keys())
    if twice := [group for group, times in taken.items() if times > 1]:
        raise Lost(f"groups that more than one step was trained on: {twice}")


def first_difference(one: Evidence, other: Evidence) -> int | None:
    """The first step whose update gave other weights, None if all gave the same."""
    steps = sorted(one.fingerprints.keys() | other.fingerprints.keys())
    return next((step for step in steps if one.fingerprints.get(step) != other.fingerprints.get(step)), None)
