"""Where a run is cut: who is struck, at which file of the journal, and how long after."""

import fnmatch
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.crash.strikes import Victim
from tasks.draws import TAKEN, draw_label
from tasks.journal import step_label

STEP_FILES = (
    "groups.parquet",
    "trial.json",
    "verdict.json",
    TAKEN,
    "batch.parquet",
    "advantages.json",
    "update.json",
    "sync.json",
    "trials.parquet",
    "record.json",
)
"""What the stages of a step leave, in order; each is published by a rename. Only a step whose trials were sampled ahead
has `taken.json`, and its groups after that."""
REPEATED = ("trial.json", "verdict.json")
"""Of these, each trial leaves one."""


@dataclass(frozen=True)
class Cut:
    """A strike at `victim` when the flow's process publishes the `nth` file of this name in step `step`.

    `before` is the last moment at which the file is not there, `after` the first at which it is; `delay` seconds later
    if it is not 0. `ahead`: trials are sampled ahead, those of step 12 in draw 12.
    """

    victim: Victim
    step: int
    file: str
    when: Literal["before", "after"] = "after"
    nth: int = 1
    delay: float = 0.0
    ahead: bool = False

    @property
    def pattern(self) -> str:
        """Of the file, from the run's folder on."""
        if self.file in REPEATED:
            return f"trials/{draw_label(self.step) if self.ahead else step_label(self.step)}/*/{self.file}"
        return f"steps/{step_label(self.step)}/{self.file}"

    @property
    def stage(self) -> str:
        """The event that tells that the stage which was cut has begun; see `tasks.progress`."""
        done = self.when == "after" and self.file not in REPEATED
        place = STEP_FILES.index(self.file) + done
        if place <= STEP_FILES.index(TAKEN):
            return "trials"
        return "update" if place <= STEP_FILES.index("update.json") else "sync"

    def is_past(self, folder: Path) -> bool:
        """Whether the run in `folder` has come beyond it. Trials that were sampled ahead are the step's in the end."""
        if self.ahead and self.file in REPEATED and (folder / "steps" / step_label(self.step) / TAKEN).is_file():
            return True
        return len(list(folder.glob(self.pattern))) >= self.nth

    def __str__(self) -> str:
        number = f" {self.nth}" if self.nth > 1 else ""
        later = f" + {self.delay:.2f} s" if self.delay else ""
        of = "draw" if self.ahead and self.file in REPEATED else "step"
        return f"{self.victim}: {of} {self.step}, {self.when} {self.file}{number}{later}"


def boundaries(step: int, trials: int) -> list[Cut]:
    """The flow's process dies on both sides of everything that a step leaves: of trials, of the first and the last."""
    files = [("groups.parquet", 1), *((file, nth) for nth in (1, trials) for file in REPEATED)]
    files += [(file, 1) for file in STEP_FILES[4:]]
    return [Cut("flow", step, file, when, nth) for file, nth in files for when in ("before", "after")]


def boundaries_ahead(step: int, trials: int) -> list[Cut]:
    """The same where trials are sampled ahead: those of the step's draw, then what the step leaves that takes it."""
    draw = [("trial.json", 1), ("verdict.json", 2), ("trial.json", trials)]
    files = [(file, 1) for file in (TAKEN, "groups.parquet", *STEP_FILES[4:])]
    return [
        Cut("flow", step, file, when, nth, ahead=True) for file, nth in draw + files for when in ("before", "after")
    ]


def instants(step: int, number: int, seed: int) -> list[Cut]:
    """The flow's process dies `number` times somewhere within the stages of a step."""
    chance = random.Random(seed)
    files = [
        (file, nth) for file in STEP_FILES if file != TAKEN for nth in ((1, 2, 3) if file == "trial.json" else (1,))
    ]
    chosen = sorted(chance.sample(range(len(files)), number))
    return [
        Cut("flow", step, *files[place][:1], nth=files[place][1], delay=chance.uniform(0.01, 0.4)) for place in chosen
    ]


class Knives:
    """An audit hook of the flow's process that makes these cuts, one after the other.

    Args:
        folder: The run's.
        strike: Is told the number of each cut, from 0, and does what it says.
    """

    def __init__(self, cuts: Sequence[Cut], folder: Path, strike: Callable[[int], None]) -> None:
        self._cuts, self._folder, self._make = list(cuts), folder, strike
        self._next = 0
        self._due, self._waiting = False, False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._due:
            # whatever the process does first after the rename
            self._due = False
            self._strike()
        elif event == "os.rename" and not self._waiting and self._next < len(self._cuts):
            self._on_rename(Path(str(arguments[1])), self._cuts[self._next])

    def _on_rename(self, published: Path, cut: Cut) -> None:
        if not published.is_relative_to(self._folder):
            return
        if not fnmatch.fnmatch(published.relative_to(self._folder).as_posix(), cut.pattern):
            return
        if len(list(self._folder.glob(cut.pattern))) + 1 < cut.nth:
            return
        if cut.delay:
            self._waiting = True
            threading.Timer(cut.delay, self._strike).start()
        elif cut.when == "before":
            self._strike()
        else:
            self._due = True

    def _strike(self) -> None:
        number, self._next, self._waiting = self._next, self._next + 1, False
        self._make(number)
