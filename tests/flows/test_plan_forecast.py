"""The simulated cluster, against cases whose answer is known."""

import pytest

from flows.plan.forecast import forecast, replay
from flows.plan.layout import Layout, Workload, layouts
from flows.plan.profile import EngineSpeed, PlanError, Profile, TrialShape

APART = {mode: Layout(mode, 1, 1) for mode in ("sync", "one_step_off", "async")}


def shape(tokens=100, **changes):
    return TrialShape(**{"turns": 1, "tokens": tokens} | changes)


def profile(*shapes, **changes):
    """One token a second, whoever else is served; an update of a second."""
    fields = {
        "source": "a test",
        "groups": (tuple(shapes) or (shape(),),),
        "engine": EngineSpeed(token=1.0),
        "update_base": 1.0,
    }
    return Profile(**fields | changes)


def workload(**changes):
    return Workload(**{"tasks_per_step": 4, "attempts_per_task": 2, "concurrency": 64, "seats": 64} | changes)


def simulated(profile, layout, workload, steps=10):
    return forecast(profile, layout, workload, steps=steps)


def test_a_step_in_sync_is_the_sum_of_its_parts():
    parts = profile(
        shape(100, setup=2.0, tools=8.0, finish=1.0, grading=4.0),
        engine=EngineSpeed(token=0.5, crowd=0.25, turn=3.0),
        update_base=5.0, update_token=0.01, batch_tokens=2.0, sync=(7.0,), overhead=(6.0,), turns_of_devices=10.0,
    )  # fmt: skip
    trial = 2 + 3 + 100 * (0.5 + 0.25 * 8) + 8 + 1 + 4
    update = 5 + 0.01 * 2 * 100 * 8
    found = simulated(parts, APART["sync"], workload())
    assert found.step_seconds == pytest.approx(6 + trial + update + 7)
    assert found.step_error == pytest.approx(0, abs=1e-9)
    assert found.idle_learner == pytest.approx(1 - update / found.step_seconds)
    assert found.idle_rollout == pytest.approx(1 - 250 / found.step_seconds)
    assert found.tokens_per_s == pytest.approx(800 / found.step_seconds)
    assert (found.mean_age, found.max_age, found.dropped) == (0, 0, 0)
    shared = simulated(parts, Layout("sync", 1, 1, shared=True), workload())
    assert shared.step_seconds == pytest.approx(found.step_seconds + 10)


def test_sync_waits_for_the_slowest():
    found = simulated(
        profile(*[shape(10)] * 3, shape(500)), APART["sync"], workload(tasks_per_step=40, concurrency=80, seats=80)
    )
    assert found.step_seconds == pytest.approx(500 + 1)


def test_async_keeps_every_slot_busy_so_that_only_the_mean_counts():
    two_lengths = profile(shape(10), shape(190), update_base=0.01)
    asked = workload(tasks_per_step=32, attempts_per_task=1, concurrency=16, max_staleness=8)
    found = simulated(two_lengths, APART["async"], asked, steps=60)
    assert found.step_seconds == pytest.approx(32 * 100 / 16, rel=0.05)
    assert found.idle_rollout == pytest.approx(0, abs=1e-6)
    assert simulated(two_lengths, APART["sync"], asked, steps=60).step_seconds > 1.2 * found.step_seconds


@pytest.mark.parametrize(("update", "expected"), [(30.0, (100 + 5 + 30 + 5) / 2), (300.0, 300 + 5)])
def test_one_step_off_has_two_steps_in_the_works_and_takes_as_long_as_the_update_at_least(update, expected):
    # trials stand still during a sync, here during that of the step between
    found = simulated(profile(update_base=update, sync=(5.0,)), APART["one_step_off"], workload())
    assert found.step_seconds == pytest.approx(expected)
    assert found.mean_age == 1 and found.max_age == 1


def test_learner_and_engines_that_share_a_machine_slow_each_other_down():
    both = profile(update_base=100.0, engine_share=1.0, learner_share=0.5)
    shared = Layout("one_step_off", 1, 1, shared=True)
    assert simulated(both, shared, workload()).step_seconds == pytest.approx(100 * 1.5)
    assert simulated(both, APART["one_step_off"], workload()).step_seconds == pytest.approx(100)


def test_trials_take_their_part_of_a_shared_machine_and_were_measured_with_it():
    busy = profile(update_base=1000.0, engine_share=0.5, learner_share=0.5, trial_share=0.5)
    shared = Layout("one_step_off", 1, 1, shared=True)
    # a step's trials, which alone take 100 s, take 150 s of an update, which in these comes 100 s further
    assert simulated(busy, shared, workload()).step_seconds == pytest.approx(1000 + 50)
    assert simulated(busy, Layout("sync", 1, 1, shared=True), workload()).step_seconds == pytest.approx(1100)


def test_twice_the_nodes_share_out_sequences_and_update():
    crowded = profile(engine=EngineSpeed(crowd=1.0), update_base=80.0)
    one = simulated(crowded, Layout("sync", 1, 1), workload(scaling=1.0))
    two = simulated(crowded, Layout("sync", 2, 2), workload(scaling=1.0))
    assert one.step_seconds == pytest.approx(800 + 80)
    assert two.step_seconds == pytest.approx(400 + 40)


def test_sequences_without_a_seat_gain_no_speed():
    crowded = profile(engine=EngineSpeed(token=1.0))
    assert simulated(crowded, APART["sync"], workload(seats=2)).step_seconds == pytest.approx(8 / 2 * 100 + 1)


def test_only_so_many_trials_run_at_once():
    assert simulated(profile(), APART["sync"], workload(concurrency=2)).step_seconds == pytest.approx(4 * 100 + 1)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_token_that_is_trained_on_is_older_than_the_bound(bound):
    tailed = profile(*[shape(50)] * 9, shape(900), update_base=40.0)
    found = simulated(tailed, APART["async"], workload(max_staleness=bound), steps=40)
    assert found.max_age <= bound
    assert found.mean_age <= bound
    assert (found.dropped > 0) == (bound > 0)


def test_trials_that_infrastructure_breaks_are_made_again():
    # each attempt loses half of its turns on average
    broken = profile(shape(80, turns=4), infra_failures=0.5)
    found = simulated(broken, APART["sync"], workload(concurrency=1, infra_attempts=2), steps=100)
    lost = 0.5 * 0.5 * 80
    assert found.step_seconds == pytest.approx(8 * (80 + lost) + 1, rel=0.05)
    assert found.tokens_per_s == pytest.approx(8 * 80 / found.step_seconds)


def test_a_replica_that_dies_costs_the_turn_and_no_trial():
    asked = workload(replica_mtbf_hours=0.02, replica_boot_seconds=10.0)
    found = simulated(profile(shape(80, turns=4)), APART["sync"], asked, steps=60)
    assert found.step_seconds > 81
    assert found.tokens_per_s == pytest.approx(8 * 80 / found.step_seconds)


def test_the_same_seed_gives_the_same_forecast():
    tailed = profile(*(shape(tokens) for tokens in range(10, 400, 7)))
    first, again = (simulated(tailed, APART["async"], workload()) for _ in range(2))
    assert first == again


def test_a_replay_plays_the_measured_groups_in_their_order():
    measured = profile(groups=tuple((shape(tokens), shape(1)) for tokens in (50, 10, 20, 40)))
    asked = workload(tasks_per_step=2)
    found = replay(measured, APART["sync"], asked, steps=2)
    assert found.step_seconds == pytest.approx((50 + 40) / 2 + 1)
    assert found.tokens_per_s == pytest.approx((50 + 10 + 20 + 40 + 4) / (2 * found.step_seconds))
    assert replay(measured, APART["sync"], asked, steps=2, skip=1).step_seconds == pytest.approx(40 + 1)
    assert replay(measured, APART["sync"], asked, steps=3, skip=2).step_seconds == pytest.approx(50 + 1), "the first"
    assert replay(measured, APART["sync"], asked, steps=3, skip=1, ending=1).step_seconds == pytest.approx(40 + 1)


@pytest.mark.parametrize("mode", ["one_step_off", "async"])
@pytest.mark.parametrize("steps", [3, 12])
def test_a_replay_samples_nothing_that_no_step_takes(mode, steps):
    measured = profile(*[shape(10)] * 2, engine=EngineSpeed(crowd=1.0), update_base=0.1)
    found = replay(measured, APART[mode], workload(tasks_per_step=1), steps=steps)
    # the engine is never idle, but for what is left to do after the last trial
    assert found.step_seconds * steps == pytest.approx(steps * 2 * 10, abs=0.3)


def test_cost_is_that_of_all_nodes_for_the_trials_that_were_trained_on():
    found = forecast(profile(), Layout("sync", 1, 3), workload(), steps=4, price=9.0)
    assert found.cost == pytest.approx(4 * 9.0 / 3600 * 101 / 8 * 1000)


def test_nodes_too_few_for_one_replica_are_refused():
    with pytest.raises(PlanError, match=r"1 rollout nodes hold no replica at 0\.5"):
        simulated(profile(), APART["sync"], workload(replicas_per_node=0.5))


def test_nodes_are_shared_where_both_can_work_on_them():
    cluster = list(layouts(["sync", "async"], [1, 3], one_machine=False))
    assert cluster == [
        Layout("sync", 1, 1, shared=True),
        Layout("sync", 3, 3, shared=True), Layout("sync", 1, 2), Layout("sync", 2, 1),
        Layout("async", 1, 2), Layout("async", 2, 1),
    ]  # fmt: skip
    assert [layout.nodes for layout in cluster] == [1, 3, 3, 3, 3, 3]
    assert list(layouts(["async"], [1], one_machine=True)) == [Layout("async", 1, 1, shared=True)]
