"""Groups that are sampled ahead: each is accounted for once, and no step trains on what is too old."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tasks.rollout_ledger import GroupState, LedgerError, Pace, RolloutLedger, Taken
from trainer.algorithms.staleness import StalenessConfig

STEPS = 6


def make_pace(mode="async", per_step=2, bound=1, **staleness):
    return Pace(mode, per_step, STEPS, StalenessConfig(max_staleness=bound, **staleness))


def make_ledger(groups="abcdefgh", **pace):
    ledger = RolloutLedger(make_pace(**pace))
    ledger.submit(list(groups))
    return ledger


def finish(ledger, group, oldest=0):
    with ledger.slot(group):
        ledger.complete(group, oldest)


class Runs(RuleBasedStateMachine):
    """A run with its journal: groups are drawn, run, end, fail; steps take and sync; and the process dies at will.

    `journal` and `trials` are what survives a death: what steps took, and which groups had completed, with their oldest
    token. The model knows nothing of the ledger's states.
    """

    @initialize(
        mode=st.sampled_from(["one_step_off", "async"]),
        per_step=st.integers(1, 3),
        bound=st.integers(0, 3),
        drop=st.booleans(),
    )
    def begin(self, mode, per_step, bound, drop):
        bound = max(bound, 1) if mode == "one_step_off" else bound
        self.pace = make_pace(mode, per_step, bound, too_old="drop" if drop else "down_weight")
        self.ledger = RolloutLedger(self.pace)
        self.drawn: list[str] = []
        self.journal: list[Taken] = []
        self.trials: dict[str, int] = {}
        self.slots: dict[str, object] = {}
        self.first_token: dict[str, int] = {}
        self.served = 0

    @rule()
    def draw(self):
        if self.ledger.has_room() and self.ledger.startable() is None:
            new = [f"{len(self.drawn) + i}" for i in range(self.pace.groups_per_step)]
            self.ledger.submit(new)
            self.drawn += new

    @rule()
    def start(self):
        group = self.ledger.startable()
        if group is not None:
            slot = self.ledger.slot(group)
            slot.__enter__()
            self.slots[group] = slot

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def first_token_is_sampled(self, data):
        self.first_token.setdefault(data.draw(st.sampled_from(sorted(self.slots))), self.served)

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def end(self, data):
        group = data.draw(st.sampled_from(sorted(self.slots)))
        oldest = self.first_token.pop(group, None)
        self.trials[group] = oldest  # journaled before the ledger hears of it
        self.ledger.complete(group, oldest)
        self.slots.pop(group).__exit__(None, None, None)

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def fail_or_cancel(self, data):
        group = data.draw(st.sampled_from(sorted(self.slots)))
        self.first_token.pop(group, None)
        self.slots.pop(group).__exit__(None, None, None)

    @precondition(lambda self: len(self.journal) == self.served < STEPS)
    @rule()
    def take(self):
        taken = self.ledger.take(self.served + 1)
        if taken is not None:
            self.journal.append(taken)
            assert self.ledger.take(self.served + 1) is taken

    @precondition(lambda self: len(self.journal) == self.served < STEPS)
    @rule()
    def die_having_taken_but_not_journaled(self):
        self.ledger.take(self.served + 1)
        self.die()

    @precondition(lambda self: len(self.journal) > self.served)
    @rule()
    def sync(self):
        # tokens of the new version may come before the ledger is told
        self.served += 1
        self.ledger.synced(self.served)

    @rule()
    def die(self):
        self.slots.clear()
        self.first_token.clear()
        self.ledger = RolloutLedger(self.pace, self.served)
        self.ledger.submit(self.drawn)
        for taken in self.journal:
            self.ledger.restore(Taken.from_json(taken.to_json()))
        for group, oldest in self.trials.items():
            if group in self.ledger.open:
                self.ledger.restore_complete(group, oldest)

    @invariant()
    def every_group_is_in_one_place(self):
        self.ledger.check()
        assert sum(self.ledger.counts().values()) == len(self.drawn)
        assert self.ledger.count(GroupState.RUNNING) == len(self.slots)

    @invariant()
    def nothing_is_trained_on_twice_and_nothing_too_old(self):
        consumed = [group for taken in self.journal for group in taken.consumed]
        assert len(consumed) == len(set(consumed)) == self.pace.groups_per_step * len(self.journal)
        for taken in self.journal:
            ages = [taken.step - 1 - self.trials[g] for g in taken.consumed if self.trials[g] is not None]
            if self.pace.staleness.too_old == "drop":
                assert max(ages, default=0) <= self.pace.staleness.max_staleness
            if self.pace.mode == "one_step_off":
                assert max(ages, default=0) <= 1
                first = self.pace.groups_per_step * (taken.step - 1)
                assert list(taken.consumed) == self.drawn[first : first + self.pace.groups_per_step]

    @invariant()
    def the_next_step_can_always_be_served(self):
        """With nothing running, there is room for what it lacks: no place in line is held by what is gone."""
        if len(self.journal) == self.served < STEPS and not self.slots:
            complete = self.ledger.count(GroupState.COMPLETE)
            assert self.ledger.has_room() or complete >= self.pace.groups_per_step


Runs.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestRuns = Runs.TestCase


def test_async_takes_the_first_complete_and_keeps_the_others():
    ledger = make_ledger()
    for group in "abcd":
        finish(ledger, group)
    assert ledger.startable() is None, "two steps ahead and no further"
    assert ledger.take(1).consumed == ("a", "b")
    ledger.synced(1)
    assert ledger.startable() == "e"
    assert ledger.take(2).consumed == ("c", "d")


def test_async_takes_in_the_order_of_completion():
    ledger = make_ledger()
    slow = ledger.slot("a")
    slow.__enter__()
    finish(ledger, "b")
    finish(ledger, "c")
    assert ledger.take(1).consumed == ("b", "c")


def test_one_step_off_waits_for_its_own_draw_beside_the_next_one_and_no_further():
    ledger = make_ledger(mode="one_step_off", bound=3)
    slow = ledger.slot("a")
    slow.__enter__()
    for group in "bcd":
        finish(ledger, group)
    assert ledger.startable() is None and ledger.take(1) is None
    ledger.complete("a", 0)
    assert ledger.take(1).consumed == ("a", "b")
    assert ledger.startable() is None, "what starts now would be two versions old"
    ledger.synced(1)
    assert ledger.startable() == "e"


def test_what_was_overtaken_is_dropped_counted_and_replaced():
    ledger = make_ledger(per_step=1, bound=1)
    slow = ledger.slot("a")
    slow.__enter__()
    for step, group in enumerate("bcd", 1):
        finish(ledger, group, step - 1)
        assert ledger.take(step).consumed == (group,)
        ledger.synced(step)
    ledger.complete("a", 0)
    finish(ledger, "e", 3)
    before = ledger.pace.started(3, 0)
    taken = ledger.take(4)
    assert (taken.consumed, taken.dropped) == (("e",), ("a",))
    assert ledger.pace.started(3, 1) == before + 1
    assert ledger.counts()["dropped"] == 1


def test_down_weighting_drops_nothing():
    ledger = make_ledger(per_step=1, bound=0, too_old="down_weight")
    finish(ledger, "a")
    ledger.take(1)
    ledger.synced(1)
    finish(ledger, "b", 0)
    assert ledger.take(2).consumed == ("b",)


def test_a_run_that_ends_starts_no_group_that_nobody_would_take():
    pace = make_pace(bound=3)
    assert [pace.started(version, 0) for version in (0, 2, STEPS - 1)] == [8, 12, 12]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda ledger: ledger.submit(["a"]), "a is submitted twice"),
        (lambda ledger: ledger.slot("b").__enter__(), "b starts, but a is next"),
        (lambda ledger: ledger.complete("a", 0), "a should be running, but it is submitted"),
        (lambda ledger: ledger.take(2), "step 2 asks for groups after 0 steps"),
        (lambda ledger: ledger.synced(1), "version 1 follows 0 after 0 steps"),
        (lambda ledger: ledger.restore(Taken(1, ("a",), (), {"a": 0})), "step 1 takes 1 groups after 0 steps"),
        (
            lambda ledger: ledger.restore(Taken(1, ("a", "z"), (), {"a": 0, "z": 0})),
            "z should be .*, but it is unknown",
        ),
        (lambda ledger: finish(ledger, "a", 1), "a has tokens of version 1, but only 0 steps were taken"),
    ],
)
def test_what_cannot_be_is_refused(wrong, said):
    with pytest.raises(LedgerError, match=said):
        wrong(make_ledger())


def test_a_step_cannot_have_taken_what_is_too_old():
    ledger = make_ledger(per_step=1, bound=0)
    ledger.restore(Taken(1, ("a",), (), {"a": 0}))
    with pytest.raises(LedgerError, match="step 2 takes b, with tokens of version 0"):
        ledger.restore(Taken(2, ("b",), (), {"b": 0}))
