"""Journals for reports: a small finished run, and texts that an attacker would put into one."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tasks.draw import Group, groups_path, groups_table
from tasks.journal import Journal, eval_label, step_label
from trainer.metrics import step_line

NAME = "project/experiment"
MARK = "pwned"
PAYLOAD = f"document.documentElement.dataset.{MARK}=1"
HOSTILE = (
    f"<script>{PAYLOAD}</script>",
    f"</script><script>{PAYLOAD}</script>",
    f"<img src=x onerror='{PAYLOAD}'>",
    f'"><svg onload="{PAYLOAD}">',
    f'<a href="javascript:{PAYLOAD}">look</a>',
    f"<a href='https://evil.example/{MARK}'>look</a>",
    "{{ 7*7 }}{% raw %}",
    "%{x}<b>bold</b>\x00\x1b[31m\u202e",
    "\udc80 lone surrogate",
    "../../../../etc/passwd",
)


def make_journal(root: Path, steps: int = 3, total: int | None = None, name: str = NAME) -> Journal:
    """A run of `steps` steps with two groups of four trials each, scored before and after.

    The group of task `a` solves as many as the step's number, that of task `b` none, one of these tampering. `total` is
    the schedule's number of steps; the run is finished if it is not given.
    """
    journal = Journal(root / name)
    config = {
        "schedule": {"total_steps": total or steps},
        "learner": {"lr": 1e-6},
        "rollout": {"max_tokens": 96},
        "tracking": {"api_key": "hush"},
    }
    put(journal.root / "config.json", {"config": config, "versions": {"torch": "2.9"}, "commit": "abc123"})
    for step in range(1, steps + 1):
        add_trials(journal, step)
        record_step(journal, step)
    for step, reward in ((0, 0.0), (steps, 1.0)):
        add_evaluation(journal, step, {f"c{i}": [reward] * 4 for i in range(8)})
    return journal


def add_trials(journal: Journal, step: int, **changes: Any) -> None:
    """The trials of a step, and the groups that ask for them."""
    label = step_label(step)
    groups = [Group(f"{label}/{task}", task, Path("pool") / task, task, 4) for task in ("a", "b")]
    journal.stage_dir(label).mkdir(parents=True, exist_ok=True)
    pq.write_table(groups_table(groups), groups_path(journal.stage_dir(label)))
    for i in range(4):
        add_trial(journal, label, f"a-{step}-{i}", "passed" if i < step else "failed", **{"task_id": "a"} | changes)
        status = "tampered" if i == 3 else "failed"
        add_trial(journal, label, f"b-{step}-{i}", status, **{"task_id": "b"} | changes)


def add_trial(journal: Journal, label: str, session: str, status: str | None, **changes: Any) -> Path:
    """A trial's files as JSON, so that they can hold what the project's own writers never would."""
    task = changes.get("task_id", "a")
    record = {
        "session_id": session,
        "group_id": f"{label}/{task}",
        "task_id": task,
        "attempt": 1,
        "scaffold": "edit",
        "started_at": 1.7e9,
        "outcome": "completed",
        "error": None,
        "turns": 2,
        "response_length": 30,
        "num_segments": 1,
        "trained_segments": 1,
        "timings": {"queue": 1.0, "sandbox_start": 2.0, "agent": 10.0, "generate": 7.0},
    }
    folder = journal.trials_dir(label) / session
    message = {"role": "user", "content": changes.pop("said", "mend it")}
    put(folder / "trajectory.json", {"segments": [], "messages": [message]})
    put(folder / "patch.diff", changes.pop("diff", "+fixed\n"))
    if status is not None:
        reason = changes.pop("reason", f"it {status}")
        verdict = {"status": status, "reward": float(status == "passed"), "reason": reason, "seconds": 0.5}
        put(folder / "verdict.json", verdict | {"tests": {}, "log": changes.pop("log", ""), "protected": True})
    put(folder / "trial.json", record | changes)
    return folder


def record_step(journal: Journal, step: int) -> None:
    """record.json of a step, and its line in the log."""
    metrics = {
        "critic/score/mean": step / 10,
        "actor/entropy": 0.5,
        "actor/lr": 1e-6,
        "timing_s/gen": 40.0,
        "timing_s/update_actor": 9.0,
        "timing_s/update_weights": 1.0,
        "timing_s/step": 60.0,
    }
    put(journal.stage_dir(step_label(step)) / "record.json", {"step": step, "metrics": metrics})
    log = journal.logs / f"{journal.root.name}.log"
    earlier = log.read_text() if log.is_file() else ""
    put(log, earlier + step_line(step, metrics) + f"\nwarning 1 of step {step}: look out\n")


def add_evaluation(journal: Journal, step: int, clusters: dict[str, list[float]]) -> None:
    """record.json of a validation."""
    rewards = [reward for values in clusters.values() for reward in values]
    record = {"step": step, "clusters": clusters, "mean_reward": sum(rewards) / len(rewards), "tasks": len(clusters)}
    record |= {"scored": len(rewards), "launched": len(rewards) + 1, "left_out": {"infra_error": 1}, "pass_at_1": 0.5}
    put(journal.stage_dir(eval_label(step)) / "record.json", record)


def put(path: Path, content: Any) -> None:
    """A file that is complete or absent, as the journal's are, but not synced to disk: tests write hundreds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    partial.rename(path)
