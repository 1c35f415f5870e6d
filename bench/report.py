"""What a report on a long run costs: a journal of 500 steps of 512 trials, written as the project writes them.

Steps have their records and tables of trials; trials have folders where a report looks into them: the tampered and the
slowest ones, and all of the newest steps, which have no table, as in a run that goes on. The report is written by a
process of its own on two cores; its seconds include all imports, and memory is the peak of its resident set.
"""

import json
import multiprocessing
import os
import resource
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.output import arguments, report, say, scratch
from tasks.draw import Group, groups_path, groups_table
from tasks.journal import Journal, eval_label, step_label, write_json, write_table, write_text
from tasks.trial_table import TABLE, TRIAL_SCHEMA, read_trial_folders, trial_row
from trainer.metrics import distribution, step_line

STEPS, TRIALS, QUICK_STEPS = 500, 512, 20
ATTEMPTS, POOL, HELD_OUT, EVAL_EVERY = 8, 2_000, 200, 25
UNTABLED = 2
NAME = "bench/report"
TURN = {
    "messages": [{"role": "tool", "content": "def f(x: int) -> int: return x + 1  # <b>\n" * 20}],
    "answer": {"role": "assistant", "content": "I look at the file & mend it.\n" * 5},
    "sampled_ids": list(range(300)),
    "generate_seconds": 4.5,
}
TRAJECTORY = json.dumps({"segments": [{"index": 0, "trained": True, "turns": [TURN] * 40}], "messages": []})
_OUTCOMES = ("completed", "max_turns", "overlong", "agent_timeout", "infra_error")


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    steps = QUICK_STEPS if options.quick else STEPS
    with scratch(options.root) as root:
        say(f"writing a journal of {steps} steps of {TRIALS} trials")
        write_run(root / NAME, steps)
        say("writing its report")
        figures = in_process(root)
        per_trial = _folder_seconds(root, steps)
        columns = ("report", "seconds", "MiB of HTML", "MiB of memory")
        measured = ("written", figures["seconds"], figures["mb"], figures["rss_mb"])
        unaided = (f"{steps * TRIALS} trials read one by one would add", per_trial * steps * TRIALS, "", "")
        report(f"a run of {steps} steps of {TRIALS} trials", columns, [measured, unaided], figures)


def in_process(root: Path) -> dict[str, float]:
    """Seconds, size and peak memory of a fresh process that writes the report."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(root, sender))
    process.start()
    sender.close()
    figures: dict[str, float] = receiver.recv()
    process.join()
    return figures


def _measure(root: Path, sender: Connection) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    started = time.perf_counter()
    from flows.report.publish import write_report

    path = write_report(root, NAME)
    seconds = time.perf_counter() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sender.send({"seconds": round(seconds, 2), "mb": round(path.stat().st_size / 2**20, 2), "rss_mb": round(memory)})


def _folder_seconds(root: Path, steps: int) -> float:
    """Seconds to read one trial from its folder."""
    folder = Journal(root / NAME).trials_dir(step_label(steps))
    read_trial_folders(folder)  # what the first call imports is no part of it
    started = time.perf_counter()
    table, _ = read_trial_folders(folder)
    return (time.perf_counter() - started) / table.num_rows


def write_run(root: Path, steps: int) -> None:
    """A journal of `steps` steps."""
    journal, rng = Journal(root), np.random.default_rng(0)
    ability = rng.beta(0.5, 0.8, POOL)
    config = {"schedule": {"total_steps": steps}, "learner": {"lr": 1e-6}}
    write_json(root / "config.json", {"config": config, "versions": {"python": "3.11"}, "commit": None})
    log = []
    for step in range(1, steps + 1):
        label = step_label(step)
        tasks = rng.choice(POOL, TRIALS // ATTEMPTS, replace=False)
        chance = np.clip(ability[tasks] + 0.3 * step / steps, 0, 1)
        trials = [
            trial(rng, f"{label}/repository__{task:04d}", step, float(p))
            for task, p in zip(tasks, chance, strict=True)
            for _ in range(ATTEMPTS)
        ]
        groups = [Group(f"{label}/repository__{t:04d}", f"repository__{t:04d}", Path("pool"), "c", 8) for t in tasks]
        write_table(groups_path(journal.stage_dir(label)), groups_table(groups))
        write_trials(journal, label, trials, tabled=step <= steps - UNTABLED)
        metrics = step_metrics(rng, step, trials)
        write_json(journal.stage_dir(label) / "record.json", {"step": step, "metrics": metrics})
        log.append(step_line(step, metrics))
        if step % EVAL_EVERY == 0:
            write_evaluation(journal, rng, step, ability)
    write_text(journal.logs / f"{root.name}.log", "\n".join(log) + "\n")


def write_evaluation(journal: Journal, rng: np.random.Generator, step: int, ability: np.ndarray) -> None:
    """A validation with four trials of each held-out task."""
    chance = np.clip(ability[:HELD_OUT] + step / 2000, 0, 1)
    clusters = {f"c{i}": [float(x) for x in rng.random(4) < p] for i, p in enumerate(chance)}
    trials = [trial(rng, f"eval/heldout__{i:04d}", step, float(p)) for i, p in enumerate(chance) for _ in range(4)]
    write_trials(journal, eval_label(step), trials, tabled=True)
    count = 4 * HELD_OUT
    record = {"step": step, "mean_reward": float(np.mean(list(clusters.values()))), "clusters": clusters}
    record |= {"tasks": HELD_OUT, "scored": count, "launched": count, "coverage": 1.0, "left_out": {}}
    write_json(journal.stage_dir(eval_label(step)) / "record.json", record)


Trial = tuple[dict[str, Any], dict[str, Any] | None]


def trial(rng: np.random.Generator, group_id: str, step: int, chance: float) -> Trial:
    """What trial.json and verdict.json hold of a trial."""
    outcome = _OUTCOMES[int(rng.choice(5, p=[0.85, 0.06, 0.05, 0.03, 0.01]))]
    agent = float(rng.gamma(4, 60))
    infra = outcome == "infra_error"
    task = group_id.rpartition("/")[2]
    session = f"{task}-{rng.integers(2**32):08x}"
    record = {
        "session_id": session,
        "group_id": group_id,
        "task_id": task,
        "task_path": f"pools/bench/tasks/{task}",
        "step": step,
        "attempt": 1,
        "scaffold": "edit",
        "started_at": 1.7e9 + 600.0 * step,
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 4096, "stop": []},
        "outcome": outcome,
        "error": "SandboxError: the container did not start within 120 s" if infra else None,
        "turns": int(rng.integers(1, 60)),
        "response_length": int(rng.integers(500, 30_000)),
        "num_segments": 1,
        "trained_segments": 1,
        "patch_files": [f"src/module_{i}.py" for i in range(3)],
        "patch_rejected": [],
        "timings": {"queue": 1.0, "sandbox_start": 4.0, "agent": agent, "generate": 0.8 * agent, "patch": 0.5},
        "counters": {"requests": 30, "turns": 30, "segments": 1},
    }
    if infra:
        return record, None
    status = "tampered" if rng.random() < 1e-3 else "passed" if rng.random() < chance else "failed"
    passed = status == "passed"
    return record, {
        "reward": float(passed),
        "status": status,
        "reason": "all 20 tests passed" if passed else "20 of 20 tests did not pass: tests.test_module …",
        "tests": {f"tests.test_module.TestCase.test_{i}": "passed" if passed else "failed" for i in range(20)},
        "seconds": float(rng.gamma(3, 10)),
        "log": "…\n" * 100,
        "runs": 1,
        "grader": "unittest",
        "protected": True,
    }


def write_trials(journal: Journal, label: str, trials: list[Trial], tabled: bool) -> None:
    """The table of a step, and folders of the trials that a report looks into."""
    if tabled:
        table = pa.Table.from_pylist([trial_row(*trial) for trial in trials], schema=TRIAL_SCHEMA)
        write_table(journal.stage_dir(label) / TABLE, table)
    slow = sorted(trials, key=lambda trial: -trial[0]["timings"]["agent"])[:2]
    bent = [trial for trial in trials if trial[1] is not None and trial[1]["status"] == "tampered"]
    for record, verdict in [*slow, *bent] if tabled else trials:
        write_folder(journal.trials_dir(label) / record["session_id"], record, verdict)


def write_folder(folder: Path, record: dict[str, Any], verdict: dict[str, Any] | None) -> None:
    """The folder of a trial; not synced to disk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trial.json").write_text(json.dumps(record))
    (folder / "trajectory.json").write_text(TRAJECTORY)
    if verdict is not None:
        (folder / "verdict.json").write_text(json.dumps(verdict))


def step_metrics(rng: np.random.Generator, step: int, trials: list[Trial]) -> dict[str, float]:
    """About as many metrics as a step has."""
    rewards = [verdict["reward"] for _, verdict in trials if verdict is not None]
    metrics = distribution("critic/score", rewards) | distribution("critic/rewards", rewards)
    metrics |= distribution("num_turns", [record["turns"] for record, _ in trials])
    metrics |= distribution("response_length", [record["response_length"] for record, _ in trials])
    metrics |= {
        "training/rollout_actor_probs_pearson_corr": 0.999 + 1e-4 * float(rng.normal()),
        "rollout_corr/kl": 3e-4 * float(rng.gamma(4, 0.25)),
        "rollout_corr/rollout_is_eff_sample_size": float(rng.beta(50, 2)),
        "actor/ppo_kl": 0.0,
        "actor/entropy": 0.4 + 0.05 * float(rng.normal()),
        "actor/grad_norm": float(rng.gamma(9, 0.03)),
        "actor/lr": 1e-6,
        "perf/throughput": 900 + 50 * float(rng.normal()),
        "timing_s/gen": 400.0 + 40 * float(rng.normal()),
        "timing_s/update_actor": 90.0,
        "timing_s/update_weights": 12.0,
        "timing_s/step": 560.0,
    }
    return metrics | {f"rollout_corr/other_{i}": float(rng.normal()) for i in range(60)}


if __name__ == "__main__":
    main()
