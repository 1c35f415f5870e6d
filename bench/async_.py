"""What sampling ahead is worth where trials have a long tail: the same trials, slots and steps in each of the modes.

Engine, learner, proxy, sandboxes, grading and journal are the real ones, on a policy of 47 M parameters, whose update
takes a fifth of a step in mode sync. Trials wait for a log-normal time (`bench.long_tail`); `tail` is p99/p50 of what
trials took in sync, all in all. `speedup_…` is the time of the steps in mode sync over that of the mode, from the
beginning of the first trial to the last record; `max_age` the oldest trained token of all modes in weight versions,
which `bound` bounds; `idle_rollout` the share of the slots' time in which no trial ran, and `idle_learner` that of the
learner in which it neither scored, updated nor sent weights, both in async. `heldout_difference` is async minus sync on
held-out tasks after the last step, with a bootstrapped 95 % interval.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.long_tail import MEDIAN, write_pool
from bench.output import arguments, report, say, scratch
from bench.tiny import tiny_model
from tasks.evaluation import difference_interval
from tasks.journal import Journal, eval_label, read_json, step_label
from tasks.trial_files import load_trial

MODES = ("sync", "one_step_off", "async")
GROUPS, ATTEMPTS, BOUND = 4, 4, 4
LEARNS = ("timing_s/score", "timing_s/update_actor", "timing_s/update_weights")


def main() -> None:
    """Run the modes one after the other, and compare."""
    options = arguments(__doc__ or "")
    steps, median = (3, 1.0) if options.quick else (14, 2.3)
    with scratch(options.root) as root:
        root.chmod(0o755)  # sandboxes have users of their own
        config = run_config(root, steps, median)
        runs = {mode: measure(run_mode(root, config, mode, steps), steps) for mode in MODES}
    sync, ahead = runs["sync"], runs["async"]
    gain = difference_interval(sync["heldout"], ahead["heldout"])
    figures = {
        "speedup_one_step_off": sync["seconds"] / runs["one_step_off"]["seconds"],
        "speedup_async": sync["seconds"] / ahead["seconds"],
        "max_age": max(run["max_age"] for run in runs.values()),
        "bound": float(BOUND),
        "idle_rollout": ahead["idle_rollout"],
        "idle_learner": ahead["idle_learner"],
        "dropped_groups": ahead["dropped"],
        "heldout_sync": _mean(sync["heldout"]),
        "heldout_async": _mean(ahead["heldout"]),
        "heldout_difference_low": gain.low,
        "heldout_difference_high": gain.high,
        "tail": float(sync["tail"]),
    }
    rows = [
        [
            mode, run["seconds"], run["step"], run["idle_rollout"], run["idle_learner"], run["max_age"],
            run["dropped"], _mean(run["heldout"]),
        ]
        for mode, run in runs.items()
    ]  # fmt: skip
    columns = ["mode", "seconds", "a step", "slots idle", "learner idle", "oldest token", "dropped", "held-out"]
    report(f"sampling ahead: {steps} steps of {GROUPS * ATTEMPTS} trials", columns, rows, figures)


def run_config(root: Path, steps: int, median: float, groups: int = GROUPS) -> Path:
    """The run config that all modes share, with so many groups in a step, and slots for the trials of one step."""
    values: dict[str, Any] = {
        "project": "async",
        "plugins": ["bench.long_tail"],
        "model": {"path": str(tiny_model(root / "model", hidden=768, layers=12))},
        "data": {
            "train": str(write_pool(root / "train", groups * steps)),
            "heldout": str(write_pool(root / "heldout", 16)),
        },
        "rollout": {
            "tasks_per_step": groups,
            "attempts_per_task": ATTEMPTS,
            "concurrency": groups * ATTEMPTS,
            "max_tokens_per_turn": 16,
        },
        "scaffold": {"name": "long_tail", "env": {MEDIAN: str(median)}},
        "learner": {"lr": 3e-5, "dtype": "float32", "micro_batch_tokens": 512, "threads": 1},
        "serving": {"dtype": "float32", "window": 512, "threads": 1},
        "staleness": {"max_staleness": BOUND},
        "fidelity": {"patience": None},
        "schedule": {"total_steps": steps, "save_freq": 1000, "test_freq": 0, "eval_before": False},
        "evaluation": {"attempts_per_task": 8, "temperature": 1.0, "concurrency": 64},
        "diagnosis": {"stop": False},
    }
    path = root / "async.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def run_mode(root: Path, config: Path, mode: str, steps: int, *more: str) -> Journal:
    """Train in a process of its own; the run is `async/<mode>` under `root/runs`. `more` are further settings."""
    say(f"mode {mode}: {steps} steps")
    command = [str(Path(sys.executable).with_name("testgrad")), "train", str(config), "--root", str(root / "runs")]
    settings = [f"mode={mode}", f"experiment={mode}", *more]
    path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(
        command + [part for setting in settings for part in ("--set", setting)],
        check=True, stdout=sys.stderr, env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    return Journal(root / "runs" / "async" / mode)


def measure(journal: Journal, steps: int) -> dict[str, Any]:
    """What the journal says of a run's steps."""
    labels = [step_label(step) for step in range(1, steps + 1)]
    records = [journal.stage_dir(label) / "record.json" for label in labels]
    metrics = [(read_json(record) or {})["metrics"] for record in records]
    trials = [load_trial(folder).record for label in labels for folder in journal.trials(label)]
    began = [trial["started_at"] for trial in trials]
    lasted = [sum(s for name, s in t["timings"].items() if name not in ("queue", "generate")) for t in trials]
    agents = [trial["timings"]["agent"] for trial in trials]
    seconds = records[-1].stat().st_mtime - min(began)
    learned = sum(m.get(name, 0.0) for m in metrics for name in LEARNS)
    return {
        "seconds": seconds,
        "step": seconds / steps,
        "idle_rollout": 1 - sum(lasted) / (seconds * GROUPS * ATTEMPTS),
        "idle_learner": 1 - learned / seconds,
        "max_age": max(m.get("staleness/trained_age/max", 0.0) for m in metrics),
        "dropped": sum(m.get("staleness/dropped_groups", 0.0) for m in metrics),
        "heldout": (read_json(journal.stage_dir(eval_label(steps)) / "record.json") or {})["clusters"],
        "tail": np.percentile(agents, 99) / np.percentile(agents, 50),
    }


def _mean(rewards: dict[str, list[float]]) -> float:
    return float(np.mean([np.mean(values) for values in rewards.values()]))


if __name__ == "__main__":
    main()
