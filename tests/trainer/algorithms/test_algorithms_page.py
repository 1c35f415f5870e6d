"""docs/algorithms.md says what is there, and its examples run as they are written."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml

from flows.config import parse_config
from harness.verifier.verdict import Status
from tasks.reward import RewardConfig, RewardInput, shape
from trainer.algorithms.advantages.base import AdvantageInputs
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import (
    ADVANTAGE_ESTIMATORS,
    KL_ESTIMATORS,
    LOSS_AGGREGATIONS,
    POLICY_LOSSES,
    load_builtin,
)
from trainer.rollout import Outcome

PAGE = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
load_builtin()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize(
    ("title", "registry"),
    [
        ("Advantage estimators", ADVANTAGE_ESTIMATORS),
        ("Policy losses", POLICY_LOSSES),
        ("Loss aggregation", LOSS_AGGREGATIONS),
        ("KL to the reference", KL_ESTIMATORS),
    ],
)
def test_each_table_names_what_is_registered(title, registry):
    rows = [line for line in section(title).splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    builtin = {name for name, entry in registry.items() if entry.function.__module__.startswith("trainer.")}
    assert sorted(named) == sorted(builtin)


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """The modules of the page, importable, and no trace of them afterwards."""
    blocks = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL)
    for name, code in blocks:
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield [name for name, _ in blocks]
    for name, _ in blocks:
        sys.modules.pop(name, None)
    ADVANTAGE_ESTIMATORS.pop("best_of_group", None)


def test_the_estimator_of_the_page(modules):
    (text,) = [block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "plugins" in block]
    config = parse_config({"experiment": "page"} | yaml.safe_load(text), "docs/algorithms.md")
    entry = ADVANTAGE_ESTIMATORS[config.algorithm.adv_estimator]
    assert entry.summary == "A = r - the best reward of the group."
    inputs = AdvantageInputs(torch.tensor([1.0, 0.0, 0.5]).double(), torch.tensor([0, 0, 1]), torch.tensor([1, 2, 1]))
    assert entry.function(inputs, AlgorithmConfig()).advantages.tolist() == [0.0, -1.0, -1.0, 0.0]


def test_the_reward_function_of_the_page(modules):
    trial = RewardInput(
        task_id="t", session_id="s", outcome=Outcome.COMPLETED, reward=0.0,
        tests={"a": "passed", "b": "failed"}, patch="", num_turns=1, response_length=10,
    )  # fmt: skip
    reward = shape(trial, RewardConfig(function="my_rewards:compute_score"))
    assert reward.named == {"tests": 0.5, "short": 1.0} and reward.reward == 1.5
    assert Status.PASSED == "passed", "the page compares a test's status with this word"


def test_other_settings_of_the_page_are_valid(modules):
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        parse_config({"experiment": "page"} | yaml.safe_load(block), "docs/algorithms.md")
