"""Which groups a step trains on: lone survivors, greedy baselines, and groups that teach nothing."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support.journals import make_result, make_verdict

from harness.verifier.verdict import Status
from tasks.assemble_batch import Scored, filter_trials, has_signal, keep_groups, split_by_signal, with_baselines
from tasks.config import FilterConfig
from tasks.trial_files import StoredTrial
from trainer.rollout import Outcome

NUMBERS = itertools.count()


def stored(group, outcome=Outcome.COMPLETED, status=Status.PASSED, tokens=2):
    """A trial as the journal tells of it, without its files."""
    record = make_result(f"s-{next(NUMBERS)}", group, outcome=outcome).to_json()
    record |= {"response_length": tokens, "trained_segments": min(tokens, 1)}
    return StoredTrial(None, record, None if status is None else make_verdict(status))


def scored(group, reward, score=None, **changes):
    return Scored(stored(group), reward if score is None else score, reward, **changes)


def sessions(items):
    return [getattr(item, "trial", item).session_id for item in items]


OUTCOMES = st.sampled_from(list(Outcome))
TRIALS = st.lists(
    st.builds(
        stored,
        st.sampled_from("abc"),
        OUTCOMES,
        st.sampled_from([*Status, None]),
        st.integers(0, 5),
    ),
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(TRIALS, st.lists(OUTCOMES.filter(lambda o: o is not Outcome.INFRA_ERROR), max_size=3), st.integers(0, 4))
def test_a_trial_is_kept_or_counted(trials, dropped, least):
    filters = FilterConfig(drop_outcomes=dropped, min_response_tokens=least)
    kept, reasons = filter_trials(trials, filters)
    assert len(kept) + sum(reasons.values()) == len(trials)
    want = [
        trial
        for trial in trials
        if trial.outcome is not Outcome.INFRA_ERROR
        and trial.outcome not in dropped
        and trial.verdict is not None
        and trial.verdict.status is not Status.INFRA_ERROR
        and trial.record["response_length"] >= max(least, 1)
    ]
    assert sessions(kept) == sessions(want)
    groups = keep_groups(kept, reasons)
    assert len(groups) + sum(reasons.values()) == len(trials)
    sizes = Counter(item.group_id for item in kept)
    assert {item.group_id for item in groups} == {group for group, size in sizes.items() if size > 1}


def test_one_failure_of_eight_leaves_the_other_seven():
    trials = [stored("a") for _ in range(7)] + [stored("a", Outcome.INFRA_ERROR, None)]
    kept, reasons = filter_trials(trials)
    assert sessions(keep_groups(kept, reasons)) == sessions(trials[:7])
    assert reasons == {"infra_error": 1, "lone_survivor": 0}


def test_one_survivor_of_eight_is_dropped_and_counted():
    trials = [stored("a")] + [stored("a", Outcome.INFRA_ERROR, None)] * 7 + [stored("b"), stored("b")]
    kept, reasons = filter_trials(trials)
    assert [item.group_id for item in keep_groups(kept, reasons)] == ["b", "b"]
    assert reasons == {"infra_error": 7, "lone_survivor": 1}


def test_reasons():
    trials = [
        stored("a", Outcome.OVERLONG),
        stored("a", Outcome.AGENT_TIMEOUT),
        stored("a", tokens=0),
        stored("a", tokens=3),
        stored("a", tokens=4),
    ]
    filters = FilterConfig(drop_outcomes=["overlong", "agent_timeout"], min_response_tokens=4)
    kept, reasons = filter_trials(trials, filters)
    assert sessions(kept) == sessions(trials[4:])
    assert reasons == {"overlong": 1, "agent_timeout": 1, "nothing_sampled": 1, "too_short": 1}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"drop_outcomes": ["infra_error"]}, "drop_outcomes names infra_error, which is left out always"),
        (
            {"drop_outcomes": ["completed", "max_turns", "overlong", "agent_timeout"]},
            "names every outcome, so nothing is left",
        ),
        ({"drop_outcomes": ["timeout"]}, "'completed', 'max_turns'"),
        ({"refill_rounds": 2}, "refill_rounds is 2, .*set drop_uniform_groups: true, or refill_rounds: 0"),
        ({"min_response_tokens": -1}, "min_response_tokens"),
    ],
)
def test_refused(values, message):
    with pytest.raises(ValidationError, match=message):
        FilterConfig(**values)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([0.0, 0.1 + 0.2, 0.3])), max_size=16))
def test_uniform_groups_and_the_others_are_all_there_is(pairs):
    items = [scored(group, reward) for group, reward in pairs]
    kept, uniform = split_by_signal(items, by_name=False)
    assert sorted(sessions(kept) + [s for group in uniform for s in sessions(group)]) == sorted(sessions(items))
    rewards = {name: {reward for group, reward in pairs if group == name} for name, _ in pairs}
    assert {item.group_id for item in kept} == {name for name, values in rewards.items() if len(values) > 1}
    assert all(len({item.group_id for item in group}) == 1 for group in uniform)


def test_a_penalty_for_length_is_a_signal():
    assert has_signal([scored("a", -0.5, score=0.0), scored("a", -0.25, score=0.0)], by_name=False)


def test_equal_sums_of_different_parts_are_a_signal_only_by_name():
    group = [scored("a", 1.0, named={"x": 1.0, "y": 0.0}), scored("a", 1.0, named={"x": 0.0, "y": 1.0})]
    assert has_signal(group, by_name=True) and not has_signal(group, by_name=False)
    assert not has_signal([group[0], group[0]], by_name=True)


def test_a_greedy_trial_that_did_otherwise_is_a_signal():
    assert has_signal([scored("a", 0.0, baseline=1.0)] * 2, by_name=False)
    assert not has_signal([scored("a", 0.0, baseline=0.0)] * 2, by_name=False)


def test_groups_without_their_greedy_trial_are_dropped_and_counted():
    reasons = Counter()
    items = [scored("a", 0.0), scored("a", 1.0), scored("b", 1.0), scored("b", 1.0), scored("b", 0.0)]
    kept = with_baselines(items, {"a": 0.5}, reasons)
    assert [(item.group_id, item.reward, item.baseline) for item in kept] == [("a", 0.0, 0.5), ("a", 1.0, 0.5)]
    assert reasons == {"no_greedy_baseline": 3}
