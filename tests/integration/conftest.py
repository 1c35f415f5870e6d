"""Fixtures of tests that drive real engines."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.tiny import tiny_model

from harness.sandbox import SandboxConfig, SandboxUnavailable, require_isolation
from trainer.placement import ray_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A private Ray cluster for the tests of one module."""
    with ray_cluster():
        yield


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny random models: `tied` and `untied`."""
    folder = tmp_path_factory.mktemp("models")
    return {name: tiny_model(folder / name, tied=name == "tied") for name in ("tied", "untied")}


@pytest.fixture
def run_config(models: dict[str, Path], tmp_path: Path) -> Path:
    """A small run on the tiny model, in which every step has signal."""
    values: dict[str, Any] = {
        "project": "test",
        "experiment": "run",
        "plugins": ["support.plugin"],
        "model": {"path": str(models["tied"])},
        "rollout": {"tasks_per_step": 2, "attempts_per_task": 2, "max_tokens_per_turn": 24},
        "algorithm": {"adv_estimator": "alternate"},
        "learner": {"lr": 1e-3, "dtype": "float32"},
        "serving": {"dtype": "float32", "window": 1024},
        "schedule": {"total_steps": 2, "save_freq": 2, "test_freq": 0},
        "evaluation": {"attempts_per_task": 1, "max_tasks": 2},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture
def sandbox() -> Iterator[SandboxConfig]:
    """Real sandboxes, or a skip that says why there are none."""
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)  # the sandbox may run as another user
        config = SandboxConfig(root=Path(root))
        try:
            require_isolation(config)
        except SandboxUnavailable as error:
            pytest.skip(f"no isolation here: {error}")
        yield config


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run root that tests share, so that pools are built and databases migrated once."""
    return tmp_path_factory.mktemp("root")
