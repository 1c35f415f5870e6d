"""A whole step by the command line, learner and replica on one GPU."""

import json
from pathlib import Path
from typing import Any

import yaml
from support.integration import leftover_processes, testgrad


def test_a_step_end_to_end(model: Path, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "project": "gpu",
        "experiment": "run",
        "plugins": ["support.plugin"],
        "model": {"path": str(model)},
        "rollout": {"tasks_per_step": 2, "attempts_per_task": 2, "max_tokens_per_turn": 24},
        "algorithm": {"adv_estimator": "alternate"},
        "learner": {"lr": 1e-3, "gpus_per_rank": 1},
        "serving": {"window": 1024, "colocated": True, "gpu_memory_utilization": 0.4},
        "schedule": {"total_steps": 1, "save_freq": 1, "test_freq": 0, "eval_before": False, "eval_after": False},
        "evaluation": {"attempts_per_task": 1, "max_tasks": 2},
    }
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(values))
    done = testgrad("train", config, root=tmp_path / "root")
    assert done.returncode == 0, done.stdout + done.stderr
    steps = tmp_path / "root" / "gpu" / "run" / "steps" / "step_000001"
    metrics = json.loads((steps / "record.json").read_text())["metrics"]
    assert metrics["actor/grad_norm"] > 0
    assert metrics["training/rollout_actor_probs_pearson_corr"] > 0.99
    assert metrics["memory_gib/replicas_asleep"] < metrics["memory_gib/replicas_awake"]
    update, sync = (json.loads((steps / name).read_text()) for name in ("update.json", "sync.json"))
    assert sync["version"] == 1 and sync["fingerprint"] == update["fingerprint"]
    assert not leftover_processes()
