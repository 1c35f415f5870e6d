"""What a trial earns: the verdict, the run's own function, the penalty for length, and what stops the step."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from pydantic import ValidationError
from support.journals import make_result, make_run, write_trial

from harness.verifier.verdict import Status
from tasks.reward import Reward, RewardConfig, RewardError, RewardInput, overlong_penalty, reward_trials, shape
from trainer.rollout import Outcome

LABEL = "step_000001"


def trial(**changes):
    fields = {
        "task_id": "fix-add",
        "session_id": "fix-add-0123abcd",
        "outcome": Outcome.COMPLETED,
        "reward": 1.0,
        "tests": {"t.T.test": "passed"},
        "patch": "+fixed\n",
        "num_turns": 2,
        "response_length": 40,
    }
    return RewardInput(**fields | changes)


@pytest.fixture
def function(tmp_path, monkeypatch):
    """A module `my_rewards` on the path; `function(f)` gives the config that names `f`."""
    (tmp_path / "my_rewards.py").write_text("calls = []\nnumber = 3\n\n\ndef other():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_rewards

    def use(compute, **config):
        def recorded(trial):
            my_rewards.calls.append(trial.session_id)
            return compute(trial)

        monkeypatch.setattr(my_rewards, "compute_score", recorded, raising=False)
        return RewardConfig(function="my_rewards:compute_score", **config)

    use.calls = my_rewards.calls
    yield use
    import sys

    del sys.modules["my_rewards"]


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_the_verdict_is_the_reward(reward):
    assert shape(trial(reward=reward), RewardConfig()) == Reward(reward)


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(0, 0.0), (60, 0.0), (61, -0.1), (70, -1.0), (80, -2.0), (81, -2.0), (1000, -2.0)],
)
def test_the_penalty_grows_over_the_buffer(length, penalty):
    """DAPO, equation 13, with the longest answer at 80 tokens, of which the last 20 are punished, times two."""
    config = RewardConfig(overlong_buffer=20, overlong_length=80, overlong_penalty=2.0)
    assert overlong_penalty(length, config) == pytest.approx(penalty)
    assert shape(trial(response_length=length), config).reward == pytest.approx(1 + penalty)


def test_a_length_without_a_buffer_punishes_nothing():
    assert shape(trial(response_length=99), RewardConfig(overlong_length=80)) == Reward(1.0)


def test_only_sampled_tokens_are_counted(tmp_path, function):
    """Two answers of two tokens; the tool wrote a hundred in between."""
    seen = []
    config = function(lambda t: seen.append(t) or 0.5, overlong_buffer=4, overlong_length=4)
    run = make_run(tmp_path)
    result = make_result("s", turns=((4, 5), (6, 7)), between=(8,) * 100)
    assert reward_trials(run, LABEL, [write_trial(run, LABEL, result)], config)["s"].reward == pytest.approx(-0.5)
    assert seen[0].response_length == 4


def test_the_function_is_told_of_the_trial(tmp_path, function):
    seen = []
    config = function(lambda t: seen.append(t) or 0.0)
    run = make_run(tmp_path)
    stored = write_trial(run, LABEL, make_result("s", outcome=Outcome.MAX_TURNS), Status.FAILED)
    reward_trials(run, LABEL, [stored], config)
    assert seen == [RewardInput("fix-add", "s", Outcome.MAX_TURNS, 0.0, {"test_x.T.test": "passed"}, "+fixed\n", 1, 2)]


@pytest.mark.parametrize("value", [0.25, 1, True, np.float32(0.5), np.int64(2), Fraction(1, 4)])
def test_numbers(function, value):
    got = shape(trial(), function(lambda t: value))
    assert got == Reward(float(value)) and type(got.reward) is float


def test_the_sum_of_named_rewards(function):
    got = shape(trial(), function(lambda t: {"tests": t.reward, "style": -0.25}))
    assert got == Reward(0.75, {"tests": 1.0, "style": -0.25})


def test_a_named_score_is_the_reward_and_no_part_of_it(function):
    got = shape(trial(), function(lambda t: {"score": 0.5, "style": -0.25}))
    assert got == Reward(0.5, {"style": -0.25})


def test_the_penalty_is_a_part_of_named_rewards(function):
    config = function(lambda t: {"tests": 1.0}, overlong_buffer=10, overlong_length=40)
    assert shape(trial(), config) == Reward(0.0, {"tests": 1.0, "overlong": -1.0})
    assert shape(trial(response_length=1), config).named == {"tests": 1.0, "overlong": 0.0}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (None, "None"),
        ("1.0", "'1.0'"),
        ([1.0], r"\[1.0\]"),
        (1j, "1j"),
        (np.float32("nan"), "nan"),
        ({"style": math.nan}, "'style' returned nan"),
        ({"style": None}, "'style' returned None"),
        ({"score": "high"}, "'score' returned 'high'"),
        ({}, "{}"),
        ({1: 1.0}, r"\{1: 1.0\}"),
    ],
)
def test_what_is_no_reward_names_trial_function_and_value(function, value, shown):
    with pytest.raises(RewardError, match=f"(?s)session fix-add-0123abcd: my_rewards:compute_score.*{shown}.*again"):
        shape(trial(), function(lambda t: value))


def test_a_function_that_raises_names_trial_function_and_error(function):
    with pytest.raises(
        RewardError, match="fix-add-0123abcd: my_rewards:compute_score raised ZeroDivisionError: division by zero; mend"
    ):
        shape(trial(), function(lambda t: 1 / 0))


def test_a_reward_may_not_take_the_penaltys_name(function):
    config = function(lambda t: {"overlong": 1.0}, overlong_buffer=1, overlong_length=1)
    with pytest.raises(RewardError, match=r"fix-add-0123abcd.*named 'overlong'"):
        shape(trial(), config)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"function": "compute_score"}, "function is 'compute_score'; write it as my_module:my_function"),
        ({"function": "no_such_module:f"}, "'no_such_module' cannot be imported.*PYTHONPATH"),
        ({"function": "json:nothing"}, "'json' has no function 'nothing'; it has .*dumps"),
        ({"function": "math:pi"}, "'math' has no function 'pi'"),
        ({"overlong_buffer": 8}, "overlong_buffer is 8, but overlong_length is unset; set it"),
        ({"overlong_buffer": 8, "overlong_length": 4}, "overlong_buffer is 8, more than overlong_length of 4"),
        ({"overlong_penalty": 0.0}, "overlong_penalty"),
        ({"functions": "json:dumps"}, "functions"),
    ],
)
def test_refused(values, message):
    with pytest.raises(ValidationError, match=message):
        RewardConfig(**values)


def test_a_module_that_raises_when_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "broken_rewards.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValidationError, match=r"'broken_rewards' cannot be imported \(ZeroDivisionError: division by zero\)"
    ):
        RewardConfig(function="broken_rewards:f")


@pytest.fixture
def trials(tmp_path):
    run = make_run(tmp_path)
    return run, [write_trial(run, LABEL, make_result(f"s-{i}")) for i in range(3)]


def test_a_reward_once_given_stands(trials, function):
    """A function that asks a model may answer otherwise the second time; the batch must not change for it."""
    run, stored = trials
    answers = iter([0.1, 0.2, 0.3])
    config = function(lambda t: next(answers))
    first = reward_trials(run, LABEL, stored[:2], config)
    assert {session: reward.reward for session, reward in first.items()} == {"s-0": 0.1, "s-1": 0.2}
    again = reward_trials(run, LABEL, stored, config)
    assert {session: reward.reward for session, reward in again.items()} == {"s-0": 0.1, "s-1": 0.2, "s-2": 0.3}
    assert function.calls == ["s-0", "s-1", "s-2"]
    assert reward_trials(run, LABEL, stored, config) == again


def test_named_rewards_come_back_from_the_journal(trials, function):
    run, stored = trials
    config = function(lambda t: {"tests": 1 / 3, "style": 0.1})
    assert reward_trials(run, LABEL, stored, config) == reward_trials(run, LABEL, stored, config)
    assert len(function.calls) == 3


def test_another_verdict_asks_again(trials, function):
    run, stored = trials
    config = function(lambda t: t.reward)
    assert reward_trials(run, LABEL, stored[:1], config)["s-0"].reward == 1.0
    graded_again = write_trial(run, LABEL, make_result("s-0"), Status.FAILED)
    assert reward_trials(run, LABEL, [graded_again], config)["s-0"].reward == 0.0


def test_a_failure_journals_no_reward(trials, function):
    run, stored = trials
    config = function(lambda t: math.nan if t.session_id == "s-2" else 1.0)
    with pytest.raises(RewardError, match="session s-2"):
        reward_trials(run, LABEL, stored, config)
    assert run.journal.stage(LABEL, "rewards.json") is None


def test_each_trial_has_the_same_names(trials, function):
    run, stored = trials
    config = function(lambda t: {"style": 0.0, **({"extra": 1.0} if t.session_id == "s-1" else {})})
    with pytest.raises(
        RewardError, match=r"session s-1.*\['extra', 'style'\], but \['style'\] for session s-0.*remove"
    ):
        reward_trials(run, LABEL, stored, config)


def test_a_config_survives_its_own_json(function):
    config = function(lambda t: 0.0, overlong_buffer=2, overlong_length=8)
    assert RewardConfig(**json.loads(config.model_dump_json())) == config
