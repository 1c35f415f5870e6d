"""What becomes of each group that is sampled ahead of its step. Pure, and checked after every change.

A group is submitted (drawn, and in line), running (it holds a slot), complete (all its trials ended and are graded),
and in the end consumed by a step, or dropped since it was too old. Tokens carry the weight version that sampled them,
so that age is measured and never estimated: a group that was overtaken is caught when a step would take it.

How far ahead groups may start is what the mode decides. Dropped groups are replaced: a place in line that they kept
would be missing at the end, and the step that needs it would wait for ever.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Self

from trainer.algorithms.staleness import StalenessConfig

Mode = Literal["sync", "one_step_off", "async"]


class LedgerError(AssertionError):
    """The ledger contradicts itself: a fault of the code, which no other try mends."""


class GroupState(StrEnum):
    """Where a group is on its way into a batch."""

    SUBMITTED = "submitted"
    RUNNING = "running"
    COMPLETE = "complete"
    CONSUMED = "consumed"
    DROPPED = "dropped"


@dataclass(frozen=True)
class Pace:
    """How far ahead groups are sampled, and in which order steps take them."""

    mode: Mode
    groups_per_step: int
    total_steps: int
    staleness: StalenessConfig

    def started(self, version: int, dropped: int) -> int:
        """How many groups may have been started at this version, `dropped` ones included.

        Those that steps take before they would be too old, if each took them in line; one_step_off takes them in line.
        """
        bound = 1 if self.mode == "one_step_off" else self.staleness.max_staleness
        return self.groups_per_step * min(version + 1 + bound, self.total_steps) + dropped


@dataclass
class Entry:
    """A group that no step has settled. `oldest` is the version of its oldest trained token, None before it is complete
    or where none was sampled; `place` its place in the order of completion, while it waits for a step."""

    state: GroupState = GroupState.SUBMITTED
    oldest: int | None = None
    place: int | None = None


@dataclass(frozen=True)
class Taken:
    """What a step took, in this order, and which groups were dropped since the step before; with their `oldest`."""

    step: int
    consumed: Sequence[str]
    dropped: Sequence[str]
    oldest: Mapping[str, int | None]

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "consumed": list(self.consumed),
            "dropped": list(self.dropped),
            "oldest": dict(self.oldest),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        return cls(stored["step"], tuple(stored["consumed"]), tuple(stored["dropped"]), dict(stored["oldest"]))


class RolloutLedger:
    """The groups of a run, by id. `open` are those that no step has settled, in the order in which they were drawn."""

    def __init__(self, pace: Pace, version: int = 0) -> None:
        self.pace, self.version = pace, version
        self.open: dict[str, Entry] = {}
        self.taken: dict[int, Taken] = {}
        self._settled: dict[str, GroupState] = {}
        self._submitted = self._completed = self._dropped = 0

    def submit(self, groups: Sequence[str]) -> None:
        """Groups that were drawn get in line."""
        for group in groups:
            if group in self.open or group in self._settled:
                raise LedgerError(f"{group} is submitted twice")
            self.open[group] = Entry()
            self._submitted += 1
        self.check()

    @property
    def draws(self) -> int:
        """How many draws were submitted, each of the groups of a step."""
        return self._submitted // self.pace.groups_per_step

    def has_room(self) -> bool:
        """Whether another group may start."""
        started = self._submitted - self.count(GroupState.SUBMITTED)
        return started < self.pace.started(self.version, self.count(GroupState.DROPPED))

    def startable(self) -> str | None:
        """The next group in line, if it may start now."""
        if not self.has_room():
            return None
        return next((group for group, entry in self.open.items() if entry.state is GroupState.SUBMITTED), None)

    @contextmanager
    def slot(self, group: str) -> Iterator[None]:
        """The group runs inside the block. One that is not complete at its end, however it ends, is in line again."""
        if group != self.startable():
            raise LedgerError(f"{group} starts, but {self.startable()} is next")
        self._move(group, GroupState.SUBMITTED, GroupState.RUNNING)
        try:
            yield
        finally:
            if group in self.open and self.open[group].state is GroupState.RUNNING:
                self._move(group, GroupState.RUNNING, GroupState.SUBMITTED)

    def complete(self, group: str, oldest: int | None) -> None:
        """All trials of a running group have ended and are graded."""
        if oldest is not None and oldest > len(self.taken):
            raise LedgerError(f"{group} has tokens of version {oldest}, but only {len(self.taken)} steps were taken")
        entry = self._entry(group, GroupState.RUNNING)
        entry.oldest, entry.place = oldest, self._completed
        self._completed += 1
        self._move(group, GroupState.RUNNING, GroupState.COMPLETE)

    def take(self, step: int) -> Taken | None:
        """The groups that step `step` trains on, or None while too few are complete. Asked again, it says the same.

        Groups that are too old are dropped first, and replaced by later ones.
        """
        if step in self.taken:
            return self.taken[step]
        if step != len(self.taken) + 1 or step != self.version + 1:
            raise LedgerError(f"step {step} asks for groups after {len(self.taken)} steps, at version {self.version}")
        self._drop_too_old()
        chosen = self._ready()[: self.pace.groups_per_step]
        if len(chosen) < self.pace.groups_per_step:
            return None
        dropped = [group for group, entry in self.open.items() if entry.state is GroupState.DROPPED]
        oldest = {group: self.open[group].oldest for group in (*chosen, *dropped)}
        return self._settle(Taken(step, tuple(chosen), tuple(dropped), oldest))

    def synced(self, version: int) -> None:
        """The replicas serve `version` from now on."""
        if not self.version <= version <= min(self.version + 1, len(self.taken)):
            raise LedgerError(f"version {version} follows {self.version} after {len(self.taken)} steps")
        self.version = version
        self.check()

    def restore(self, taken: Taken) -> None:
        """What the journal says that the next step took."""
        for group in (*taken.consumed, *taken.dropped):
            # the state in which a step finds it; how it got there was checked then
            state = GroupState.COMPLETE if group in taken.consumed else GroupState.DROPPED
            self._entry(group, GroupState.SUBMITTED).state = state
        self._settle(taken)

    def restore_complete(self, group: str, oldest: int | None) -> None:
        """A group that was complete when the run ended; others before it in line may not be."""
        self._move(group, GroupState.SUBMITTED, GroupState.RUNNING)
        self.complete(group, oldest)

    def count(self, state: GroupState) -> int:
        """Groups in this state."""
        if state is GroupState.CONSUMED:
            return len(self._settled) - self._dropped
        open_groups = sum(entry.state is state for entry in self.open.values())
        return open_groups + (self._dropped if state is GroupState.DROPPED else 0)

    def counts(self) -> dict[str, int]:
        """Groups by state."""
        return {str(state): self.count(state) for state in GroupState}

    def check(self) -> None:
        """Raises LedgerError unless every group that was submitted is in one place, and has what its state says."""
        if both := self.open.keys() & self._settled.keys():
            raise LedgerError(f"{sorted(both)} are settled, and open")
        if self._submitted != len(self.open) + len(self._settled):
            raise LedgerError(f"{self._submitted} groups were submitted, {len(self.open)} are open, {self.counts()}")
        if self.count(GroupState.CONSUMED) != self.pace.groups_per_step * len(self.taken):
            raise LedgerError(f"{len(self.taken)} steps took {self.count(GroupState.CONSUMED)} groups")
        for group, entry in self.open.items():
            if entry.state is GroupState.CONSUMED or (entry.place is not None) != (entry.state is GroupState.COMPLETE):
                raise LedgerError(f"{group} is open and {entry.state}, its place is {entry.place}")

    def _ready(self) -> list[str]:
        """Complete groups in the order in which steps take them."""
        complete = {group: e.place for group, e in self.open.items() if e.state is GroupState.COMPLETE}
        if self.pace.mode == "async":
            return sorted(complete, key=lambda group: complete[group] or 0)
        # as in sync: each step its own draw, however its groups came in
        wanted = list(self.open)[: self.pace.groups_per_step]
        return wanted if complete.keys() >= set(wanted) else []

    def _drop_too_old(self) -> None:
        if self.pace.staleness.too_old != "drop":
            return
        for group, entry in self.open.items():
            if entry.state is GroupState.COMPLETE and self._is_too_old(entry.oldest, self.version):
                entry.place = None
                self._move(group, GroupState.COMPLETE, GroupState.DROPPED)

    def _settle(self, taken: Taken) -> Taken:
        if taken.step != len(self.taken) + 1 or len(taken.consumed) != self.pace.groups_per_step:
            raise LedgerError(f"step {taken.step} takes {len(taken.consumed)} groups after {len(self.taken)} steps")
        states = dict.fromkeys(taken.consumed, GroupState.COMPLETE) | dict.fromkeys(taken.dropped, GroupState.DROPPED)
        for group, state in states.items():
            self._entry(group, state)
            if state is GroupState.COMPLETE and self._is_too_old(taken.oldest[group], taken.step - 1):
                raise LedgerError(f"step {taken.step} takes {group}, with tokens of version {taken.oldest[group]}")
            del self.open[group]
            self._settled[group] = GroupState.DROPPED if state is GroupState.DROPPED else GroupState.CONSUMED
        self._dropped += len(taken.dropped)
        self.taken[taken.step] = taken
        self.check()
        return taken

    def _is_too_old(self, oldest: int | None, version: int) -> bool:
        staleness = self.pace.staleness
        return oldest is not None and staleness.too_old == "drop" and version - oldest > staleness.max_staleness

    def _move(self, group: str, before: GroupState, after: GroupState) -> None:
        self._entry(group, before).state = after
        self.check()

    def _entry(self, group: str, state: GroupState) -> Entry:
        """The entry of an open group that is in this state."""
        entry = self.open.get(group)
        if entry is None or entry.state is not state:
            found = self._settled.get(group, "unknown") if entry is None else entry.state
            raise LedgerError(f"{group} should be {state}, but it is {found}")
        return entry
