"""Which tasks a step tries: no task twice, the same again for the same state, and towards what teaches."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.pool.index import PoolError, TaskPointer
from harness.pool.sampler import GroupResult, SamplerConfig, SamplerState, draw_tasks, mixed_chance, tell

UNIFORM, STRATIFIED, ADAPTIVE = (SamplerConfig(sampler=name) for name in ("uniform", "stratified", "adaptive"))


def pool(*groups: tuple[str, int], **extra):
    return [
        TaskPointer(f"{name}-{i}", Path(f"/{name}/{i}"), extra={"difficulty": name, **extra})
        for name, count in groups
        for i in range(count)
    ]


def ids(tasks):
    return [task.instance_id for task in tasks]


@given(
    st.sampled_from(["uniform", "stratified", "adaptive"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.integers(1, 12),
    st.integers(1, 30),
    st.integers(0, 99),
    st.floats(0, 1),
)
@settings(max_examples=150, deadline=None)
def test_a_step_has_its_number_of_different_tasks(sampler, sizes, count, step, seed, balance):
    tasks = pool(*((f"g{i}", size) for i, size in enumerate(sizes)))
    count = min(count, len(tasks))
    config = SamplerConfig(sampler=sampler, **({"balance": balance} if sampler == "stratified" else {}))
    drawn = draw_tasks(tasks, count, step, seed, config)
    assert len(set(ids(drawn))) == len(drawn) == count
    assert draw_tasks(tasks, count, step, seed, config) == drawn


@pytest.mark.parametrize("config", [UNIFORM, STRATIFIED])
def test_an_epoch_has_every_task_once(config):
    tasks = pool(("a", 6), ("b", 6))
    seen = Counter(i for step in range(1, 7) for i in ids(draw_tasks(tasks, 4, step, 5, config)))
    assert sum(seen.values()) == 24 and set(seen) == set(ids(tasks))
    if config is UNIFORM:
        assert set(seen.values()) == {2}
    assert ids(draw_tasks(tasks, 12, 1, 5, config)) != ids(draw_tasks(tasks, 12, 2, 5, config))


def test_each_stratum_has_its_share_of_every_step():
    tasks = pool(("easy", 60), ("hard", 20))
    for step in range(1, 20):
        found = Counter(t.extra["difficulty"] for t in draw_tasks(tasks, 8, step, 0, STRATIFIED))
        assert found == {"easy": 6, "hard": 2}
    even = SamplerConfig(sampler="stratified", balance=1.0)
    assert Counter(t.extra["difficulty"] for t in draw_tasks(tasks, 8, 3, 0, even)) == {"easy": 4, "hard": 4}


def test_shares_that_are_no_whole_numbers_come_out_over_the_steps():
    tasks = pool(("a", 70), ("b", 20), ("c", 10))
    found = Counter(t.extra["difficulty"] for step in range(1, 301) for t in draw_tasks(tasks, 4, step, 1, STRATIFIED))
    assert found["a"] / 1200 == pytest.approx(0.7, abs=0.04)
    assert found["c"] / 1200 == pytest.approx(0.1, abs=0.04)


def test_strata_need_their_key():
    tasks = pool(("a", 3))
    assert len(draw_tasks(tasks, 2, 1, 0, SamplerConfig(sampler="stratified", strata="repository"))) == 2
    with pytest.raises(PoolError, match="strata are told by 'language', which a-0 does not have"):
        draw_tasks(tasks, 2, 1, 0, SamplerConfig(sampler="stratified", strata="language"))


@pytest.mark.parametrize(("count", "step"), [(0, 1), (4, 1), (1, 0)])
def test_what_cannot_be_drawn_is_refused(count, step):
    with pytest.raises(PoolError):
        draw_tasks(pool(("a", 3)), count, step, 0)


def test_the_chance_of_a_mixed_group():
    assert mixed_chance(1, 2, 1) == pytest.approx(0)
    # for a rate spread evenly: 1 - 2 / (n + 1)
    assert mixed_chance(1, 2, 8) == pytest.approx(1 - 2 / 9)
    assert mixed_chance(500, 1000, 8) == pytest.approx(1 - 2 * 0.5**8, abs=0.01)
    assert mixed_chance(0.04, 20, 8) < 0.02 and mixed_chance(19.96, 20, 8) < 0.02


def told(tasks, rates, steps=3, config=ADAPTIVE):
    state = SamplerState()
    for step in range(1, steps + 1):
        groups = [GroupResult(t.instance_id, round(8 * rates[t.extra["difficulty"]]), 8) for t in tasks]
        state = tell(state, step, groups, config)
    return state


def test_adaptive_draws_what_gives_mixed_groups():
    tasks = pool(("never", 30), ("half", 10), ("always", 30))
    state = told(tasks, {"never": 0, "half": 0.5, "always": 1})
    config = SamplerConfig(sampler="adaptive", explore=0.0)
    found = Counter(
        t.extra["difficulty"] for step in range(4, 44) for t in draw_tasks(tasks, 5, step, 0, config, state)
    )
    assert found["half"] > 0.7 * sum(found.values())
    assert found["never"] and found["always"], "what is believed now may have changed later"
    plain = Counter(t.extra["difficulty"] for step in range(4, 44) for t in draw_tasks(tasks, 5, step, 0, UNIFORM))
    assert plain["half"] < 0.3 * sum(plain.values())


def test_exploring_reaches_every_task_and_the_longest_untried_first():
    tasks = pool(("a", 12))
    config = SamplerConfig(sampler="adaptive", explore=1.0)
    state, seen = SamplerState(), []
    for step in range(1, 4):
        drawn = draw_tasks(tasks, 4, step, 7, config, state)
        seen += ids(drawn)
        state = tell(state, step, [GroupResult(t.instance_id, 4, 8) for t in drawn], config)
    assert sorted(seen) == sorted(ids(tasks))
    assert set(ids(draw_tasks(tasks, 4, 4, 7, config, state))) == set(seen[:4])


def test_rates_of_the_index_count_before_any_group():
    tasks = pool(("dull", 20), pass_rate=1.0) + pool(("good", 20), pass_rate=0.5)
    config = SamplerConfig(sampler="adaptive", explore=0.0, prior_trials=16)
    found = Counter(t.extra["difficulty"] for step in range(1, 41) for t in draw_tasks(tasks, 4, step, 0, config))
    assert found["good"] > 3 * found["dull"]


def test_old_results_fade():
    groups = [GroupResult("a", 0, 8)]
    state = tell(SamplerState(), 1, groups, ADAPTIVE)
    assert state.tasks["a"] == (0.0, 8.0, 1)
    state = tell(state, 101, [GroupResult("a", 8, 8)], ADAPTIVE)
    passes, trials, last = state.tasks["a"]
    assert last == 101 and passes == 8 and 8 < trials < 9.2


def test_a_step_that_is_told_again_changes_nothing():
    state = tell(SamplerState(), 1, [GroupResult("a", 1, 8)], ADAPTIVE)
    assert tell(state, 1, [GroupResult("a", 8, 8)], ADAPTIVE) == state
    assert tell(state, 2, [], ADAPTIVE).step == 2


def test_groups_without_trials_that_count_tell_nothing():
    assert tell(SamplerState(), 1, [GroupResult("a", 0, 0)], ADAPTIVE).tasks == {}
    with pytest.raises(PoolError, match="9 passes of 8"):
        tell(SamplerState(), 1, [GroupResult("a", 9, 8)], ADAPTIVE)


def test_a_resumed_run_draws_what_it_would_have_drawn():
    tasks = pool(("a", 15), ("b", 15))

    def steps(state, numbers):
        for step in numbers:
            drawn = draw_tasks(tasks, 6, step, 11, ADAPTIVE, state)
            yield ids(drawn)
            groups = [GroupResult(t.instance_id, len(t.instance_id) * step % 9, 8) for t in drawn]
            state = tell(state, step, groups, ADAPTIVE)
        states.append(state)

    states: list[SamplerState] = []
    whole = list(steps(SamplerState(), range(1, 9)))
    first = list(steps(SamplerState(), range(1, 5)))
    stored = SamplerState.from_json(states[-1].to_json())
    assert stored == states[-1]
    assert first + list(steps(stored, range(5, 9))) == whole


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"step": 1, "tasks": {"a": [1]}}', '{"step": "x", "tasks": {}}'])
def test_what_is_no_state_is_refused(text):
    with pytest.raises(PoolError, match="no state of a sampler"):
        SamplerState.from_json(text)


def test_settings_without_an_effect_are_refused():
    with pytest.raises(ValidationError, match="explore has no effect with sampler uniform; set sampler: adaptive"):
        SamplerConfig(explore=0.5)
    with pytest.raises(ValidationError, match="set sampler: stratified"):
        SamplerConfig(sampler="adaptive", balance=0.5)
