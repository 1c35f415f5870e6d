"""Journals of runs whose health is known: all is well, but for what a test changes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support.reported import put

from flows.diagnosis.facts import RunFacts
from tasks.draw import Group, groups_path, groups_table
from tasks.journal import Journal, eval_label, step_label, write_table
from trainer.fidelity.judge import MAX_DIFF, MEAN_DIFF, PEARSON

NAME = "project/experiment"
TRIALS = 16

CONFIG: dict[str, Any] = {
    "schedule": {"total_steps": 20, "eval_after": False},
    "learner": {"lr": 1e-6, "grad_clip": 1.0},
    "rollout": {"max_tokens_per_turn": 100},
    "serving": {"window": 1000, "tool_call_parser": "hermes"},
    "scaffold": {"name": "cc", "max_turns": 50, "agent_timeout": 600},
    "fidelity": {"threshold": 0.99},
}

Changes = Mapping[str, Any]
Metrics = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]


def healthy(step: int) -> dict[str, float]:
    """Metrics of a step that shows nothing; they waver a little, as real ones do."""
    waver = 1 + 0.05 * (step % 3 - 1)
    return {
        "critic/score/mean": 0.3 * waver,
        "critic/score/min": 0.0,
        "critic/score/max": 1.0,
        "critic/advantages/max": 1.5,
        "critic/advantages/min": -1.5,
        "batch/rollouts": float(TRIALS),
        "batch/groups": 4.0,
        "batch/groups_with_signal": 3.0,
        "batch/solve_none": 1.0,
        "batch/solve_all": 0.0,
        "num_turns/mean": 8.0 * waver,
        "response_length/mean": 300.0 * waver,
        "response_length/clip_ratio": 0.05,
        "outcome/completed": float(TRIALS),
        "outcome/infra_error": 0.0,
        "outcome/agent_timeout": 0.0,
        "verdict/infra_error": 0.0,
        "trajectory_filter/invalid_ratio": 0.0,
        "rollout/unreadable_tool_calls": 0.0,
        "actor/lr": 1e-6,
        "actor/grad_norm": 0.3 * waver,
        "actor/entropy": 0.5 * waver,
        "actor/skipped_steps": 0.0,
        "rollout_corr/kl": 3e-4,
        "rollout_corr/rollout_is_eff_sample_size": 0.95,
        PEARSON: 0.999,
        MEAN_DIFF: 0.002,
        MAX_DIFF: 0.1,
        "timing_s/gen": 70.0 * waver,
        "timing_s/update_actor": 20.0 * waver,
        "timing_s/update_weights": 2.0,
        "timing_s/step": 100.0 * waver,
        "timing_s/agent_loop/agent/mean": 50.0,
        "timing_s/agent_loop/generate/mean": 30.0,
        "timing_per_token_ms/gen": 5.0 * waver,
    }


def write_run(root: Path, steps: int = 12, changes: Metrics = {}, config: Changes = {}, name: str = NAME) -> Journal:  # noqa: B006
    """A journal of so many steps. `changes` are metrics in the place of healthy ones, or a function of the step that
    gives them; one that is None is left out. Of `config`, sections are merged."""
    journal = Journal(root / name)
    merged = {key: {**CONFIG.get(key, {}), **config.get(key, {})} for key in {*CONFIG, *config}}
    put(journal.root / "config.json", {"config": merged, "identity": "0", "versions": {}, "commit": None})
    for step in range(1, steps + 1):
        changed = changes(step) if callable(changes) else changes
        metrics = {key: value for key, value in (healthy(step) | dict(changed)).items() if value is not None}
        folder = journal.stage_dir(step_label(step))
        put(folder / "record.json", {"step": step, "metrics": metrics})
        put(folder / "update.json", {"step": step, "fingerprint": f"{step:064x}"})
    return journal


def write_trials(journal: Journal, label: str, rows: list[dict[str, Any]], tools: int = 1, unreadable: int = 0) -> None:
    """The trials of a step, each well but for what its row says; `tools` are calls of each answer."""
    for number, changes in enumerate(rows):
        row = {"outcome": "completed", "turns": 8, "response_length": 300, "error": None, "status": "passed"} | changes
        status, reason = row.pop("status"), row.pop("reason", "so it is")
        session = f"task-{number}"
        record = {"session_id": session, "group_id": f"{label}/task-{number // 4}", "task_id": f"task-{number // 4}"}
        folder = journal.trials_dir(label) / session
        answer = {"role": "assistant", "content": "so", "tool_calls": [{"id": "x"}] * tools}
        turn = {"answer": answer, "unreadable_tool_call": bool(unreadable)}
        put(folder / "trajectory.json", {"segments": [{"turns": [turn] * row["turns"]}]})
        if status is not None:
            put(folder / "verdict.json", {"status": status, "reward": float(status == "passed"), "reason": reason})
        put(folder / "trial.json", record | row | {"timings": {"agent": 10.0}})


def write_groups(journal: Journal, label: str, groups: int = 4, attempts: int = 4) -> None:
    """What a step or an evaluation begins with."""
    rows = [Group(f"{label}/task-{i}", f"task-{i}", Path("pool"), f"task-{i}", attempts) for i in range(groups)]
    write_table(groups_path(journal.stage_dir(label)), groups_table(rows))


def write_evaluation(journal: Journal, step: int, **changes: Any) -> None:
    """The record of an evaluation."""
    record = {"step": step, "scored": 64, "launched": 64, "mean_reward": 0.3, "left_out": {}}
    put(journal.stage_dir(eval_label(step)) / "record.json", record | changes)


def facts_of(root: Path, name: str = NAME) -> RunFacts:
    return RunFacts.read(root, name)
