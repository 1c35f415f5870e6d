"""Where a run is: its state, its stage, what is left and how long that takes; from files and the system only."""

import math
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from flows.diagnosis.facts import RunFacts, times_of
from flows.diagnosis.process import holders
from tasks.draws import draw_label, next_draw
from tasks.journal import eval_label, step_label

_ETA_STEPS = 10


class State(StrEnum):
    """What a run can be found to be."""

    RUNNING = "running"
    WAITING = "waiting"
    """A process works on it, and no stage of a step has begun since it started: pools, model, checks, engines."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """Somebody stopped it, or its schedule was raised since it finished; it can go on."""
    FAILED = "failed"
    DEAD = "dead"
    """Its process is gone without having said how it ended."""
    NEW = "new"
    """It has a configuration, and nobody has worked on it."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Stage:
    """What is done at the moment. `done` and `total` count trials, None where nothing is counted."""

    label: str
    name: str
    done: int | None = None
    graded: int | None = None
    total: int | None = None
    began_at: float | None = None

    @property
    def text(self) -> str:
        counted = ""
        if self.done is not None:
            of = f" of {self.total}" if self.total is not None else ""
            counted = f": {self.done}{of} trials ended, {self.graded or 0} graded"
        return f"{_said(self.label)}, {self.name}{counted}"


@dataclass(frozen=True)
class RunState:
    """The state of a run and why it is taken to be so. Times are in seconds since 1970; `pids` work on it here."""

    state: State
    why: str
    since: float | None
    pids: list[int]
    stage: Stage | None
    eta_seconds: float | None
    eta_from: str


def state_of(facts: RunFacts) -> RunState:
    """The state of a run."""
    pids = _at_work(facts)
    process, end, stage = facts.process, facts.end, current_stage(facts)
    if pids or (process is not None and process.alive):
        state, why, since = _working(facts, stage, pids)
    elif process is not None:
        state, since = State.DEAD, facts.changed_at
        why = f"process {process.pid} still holds the lease and is gone: killed, or the machine went down"
    elif _complete(facts):
        state, why, since = State.FINISHED, f"all {facts.total_steps} steps are recorded", facts.changed_at
    elif end is not None and end.how == "failed":
        state, why, since = State.FAILED, end.message, end.at
    elif end is not None and end.how == "finished" and facts.total_steps is None:
        state, why, since = State.FINISHED, "its process came to its end", end.at
    elif end is not None:
        how = "was stopped" if end.how == "stopped" else "came to its end; its schedule was raised since"
        state, why, since = State.STOPPED, f"its last process {how}", end.at
    elif facts.recorded or facts.changed_at is not None:
        state, since = State.STOPPED, facts.changed_at
        why = "no process has files of it open, and none has left word of its end"
    elif facts.config:
        state, why, since = State.NEW, "it has a configuration, and nobody has worked on it", None
    else:
        state, why, since = State.UNKNOWN, "its config.json is missing or damaged", None
    eta, told = _eta(facts, stage) if state in (State.RUNNING, State.WAITING) else (None, "")
    return RunState(state, why, since, pids, None if state is State.FINISHED else stage, eta, told)


def _working(facts: RunFacts, stage: Stage | None, pids: list[int]) -> tuple[State, str, float | None]:
    process = facts.process
    if process is None or not process.alive:
        return State.RUNNING, f"process {', '.join(map(str, pids))} has files of it open", None
    who = f"process {process.pid}" + ("" if process.here else f" of {process.host}, which cannot be asked from here")
    if process.work not in ("train", "warm-start") or _moved(facts, stage, process.since):
        return State.RUNNING, f"{who} works on it ({process.work})", process.since
    return State.WAITING, f"{who} prepares model, pools and engines; no stage has begun yet", process.since


def _moved(facts: RunFacts, stage: Stage | None, since: float) -> bool:
    """Whether a stage of a step or an evaluation has written anything since then."""
    labels = {step_label(facts.newest)} | ({stage.label} if stage is not None else set())
    folders = [place(label) for label in labels for place in (facts.journal.stage_dir, facts.journal.trials_dir)]
    return any(written >= since for folder in folders for written in times_of(folder))


def _at_work(facts: RunFacts) -> list[int]:
    """Processes of this machine that work on the run: the recorded one, or those with its files open."""
    process = facts.process
    if process is not None and process.here:
        return [process.pid] if process.alive else []
    return holders(facts.journal.root) if process is None else []


def _complete(facts: RunFacts) -> bool:
    total = facts.total_steps
    if total is None or total not in facts.recorded or not facts.has_checkpoint(total):
        return False
    return not facts.setting("schedule.eval_after", True) or total in facts.evaluations


def current_stage(facts: RunFacts) -> Stage | None:
    """The first stage that has left no result; None for a run that is complete, or of which nothing is known."""
    total, newest = facts.total_steps, facts.newest
    scoring = _scoring(facts)
    if scoring is not None:
        return scoring
    if total is not None and newest >= total:
        if facts.has_checkpoint(total):
            return None
        return Stage(step_label(total), "checkpoint")
    label = step_label(newest + 1)
    began = _time(facts.journal.stage_dir(label) / "groups.parquet")
    if began is None and (draw := next_draw(facts.journal) - 1):
        # the step waits for groups that are sampled ahead; the newest draw shows whether they get on
        ahead = draw_label(draw)
        return _trials(facts, ahead, _time(facts.journal.stage_dir(ahead) / "groups.parquet"))
    if began is None:
        return Stage(label, "not begun") if total is not None else None
    if not facts.has(label, "batch.parquet"):
        return _trials(facts, label, began)
    for marker, name in (
        ("advantages.json", "scores and advantages"),
        ("update.json", "update"),
        ("sync.json", "sync"),
    ):
        if not facts.has(label, marker):
            return Stage(label, name, began_at=began)
    return Stage(label, "record", began_at=began)


def _scoring(facts: RunFacts) -> Stage | None:
    """An evaluation that has begun after the newest step, and has no record."""
    label = eval_label(facts.newest)
    began = _time(facts.journal.stage_dir(label) / "groups.parquet")
    if began is None or facts.has(label, "record.json") or facts.has(step_label(facts.newest + 1), "groups.parquet"):
        return None
    return _trials(facts, label, began)


def _trials(facts: RunFacts, label: str, began: float | None) -> Stage:
    folders = facts.journal.trials(label)
    graded = sum((folder / "verdict.json").is_file() for folder in folders)
    return Stage(label, "trials", len(folders), graded, facts.planned(label), began)


def _eta(facts: RunFacts, stage: Stage | None) -> tuple[float | None, str]:
    """Seconds until the last step, from the times of the newest steps, and in words what they are taken from."""
    seconds = [value for _, value in facts.series("timing_s/step", _ETA_STEPS)]
    total = facts.total_steps
    if not seconds or total is None:
        return None, "no step has been timed yet"
    median = statistics.median(seconds)
    left = (total - facts.newest) * median
    if stage is not None and stage.began_at is not None and stage.label.startswith("step_"):
        left -= min(max(facts.now - stage.began_at, 0.0), median)
    return max(
        left, 0.0
    ), f"median of {len(seconds)} steps, {median:.0f} s each; evaluations and checkpoints come on top"


def cpu_seconds(pids: list[int]) -> float | None:
    """CPU seconds that these processes and all below them have used so far; None if none can be asked."""
    return _summed(pids, lambda process: sum(process.cpu_times()[:2]))


def _summed(pids: list[int], measure: Callable[[psutil.Process], float]) -> float | None:
    found: dict[int, float] = {}
    for pid in pids:
        try:
            for process in (parent := psutil.Process(pid), *parent.children(recursive=True)):
                found[process.pid] = measure(process)
        except psutil.Error:  # it ended, or is somebody else's
            continue
    return math.fsum(found.values()) if found else None


def _time(path: Path) -> float | None:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return None


def _said(label: str) -> str:
    step = int(label[-6:])
    if label.startswith("draw_"):
        return f"draw {step}"
    return f"evaluation after step {step}" if label.startswith("eval_") else f"step {step}"
