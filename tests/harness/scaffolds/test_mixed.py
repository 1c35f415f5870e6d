"""Which agent gets which task."""

from collections import Counter

import pytest

from harness.scaffolds import mixed as _registers  # noqa: F401
from harness.scaffolds.base import MixedConfig, ScaffoldConfig, ScaffoldError, create_scaffold
from harness.scaffolds.claude_code import ClaudeCode
from harness.scaffolds.mixed import MixedScaffold, for_evaluation, pick

TASKS = [f"task-{number}" for number in range(2000)]


def mixed(**values: object) -> ScaffoldConfig:
    return ScaffoldConfig(name="mixed", max_turns=7, mixed=MixedConfig.model_validate(values))


def test_the_draw_follows_from_seed_step_and_task_alone() -> None:
    one = MixedConfig(weights={"cc": 1, "oc": 1})
    draws = [pick(one, step=3, task_id=task) for task in TASKS]
    assert draws == [pick(MixedConfig(weights={"oc": 5, "cc": 5}), step=3, task_id=task) for task in TASKS]
    assert draws[:8] == ["oc", "cc", "oc", "cc", "oc", "oc", "oc", "cc"], "another draw breaks runs that go on"
    assert draws != [pick(one, step=4, task_id=task) for task in TASKS]
    assert draws != [pick(one.model_copy(update={"seed": 1}), step=3, task_id=task) for task in TASKS]


def test_shares_follow_the_weights() -> None:
    weights = MixedConfig(weights={"cc": 3, "oc": 1, "edit": 0})
    counts = Counter(pick(weights, step=1, task_id=task) for task in TASKS)
    assert counts["edit"] == 0
    assert 0.72 < counts["cc"] / len(TASKS) < 0.78


def test_the_agent_that_is_made_has_its_own_settings() -> None:
    config = mixed(weights={"cc": 1}, settings={"cc": {"max_turns": 9, "args": ["--tools", "Bash"]}})
    scaffold = create_scaffold(config, step=1, task_id="a")
    assert isinstance(scaffold, ClaudeCode)
    assert (scaffold.config.name, scaffold.config.max_turns, scaffold.config.args) == ("cc", 9, ("--tools", "Bash"))
    assert create_scaffold(mixed(weights={"cc": 1}), task_id="a").config.max_turns == 7


def test_the_index_wins_over_the_weights() -> None:
    config = mixed(weights={"cc": 0, "oc": 1})
    assert create_scaffold(config, task_id="a", named="cc").config.name == "cc"
    with pytest.raises(ScaffoldError, match="index names scaffold 'qwen'"):
        create_scaffold(config, task_id="a", named="qwen")


def test_evaluation_may_pin_one() -> None:
    assert for_evaluation(mixed(weights={"cc": 1, "oc": 1}, evaluation="oc")).name == "oc"
    assert for_evaluation(mixed(weights={"cc": 1, "oc": 1})).name == "mixed"
    assert for_evaluation(ScaffoldConfig(name="edit")).name == "edit"


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"weights": {"cc": -1}}, "mixed.weights.cc is -1"),
        ({"weights": {"cc": float("nan")}}, "finite"),
        ({"weights": {"cc": 0, "oc": 0}}, "all 0"),
        ({"weights": {"cc": 1}, "settings": {"oc": {}}}, "without a weight"),
    ],
)
def test_weights_that_are_no_shares_are_refused(values: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        MixedConfig.model_validate(values)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "weights is empty"),
        ({"weights": {"nobody": 1}}, "'nobody' is unknown"),
        ({"weights": {"mixed": 1}}, "names mixed itself"),
        ({"weights": {"cc": 1}, "evaluation": "oc"}, "has no weight"),
        ({"weights": {"cc": 1}, "settings": {"cc": {"max_turns": 0}}}, "settings.cc"),
        ({"weights": {"cc": 1}, "settings": {"cc": {"name": "oc"}}}, "sets name"),
        ({"weights": {"command": 1}}, "scaffold.command is empty"),
    ],
)
def test_a_mixture_that_cannot_work_is_refused(values: dict[str, object], complaint: str) -> None:
    with pytest.raises(ScaffoldError, match=complaint):
        MixedScaffold.check(mixed(**values))
