"""Does the policy learn? Three seeds of the quickstart's setting; held-out functions before and after.

The seeds differ in pool (bugs, and which functions are held out), in the order of tasks and in what is sampled. A
function's scores are averaged over its trials and seeds; the interval is a bootstrap over functions of after minus
before.
"""

import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.output import arguments, report, say, scratch
from harness.pool.kata import build_pool
from tasks.evaluation import difference_interval
from tasks.journal import Journal, eval_label, read_json, step_label

CONFIG = Path(__file__).parent.parent / "deployments" / "runs" / "quickstart.yaml"
SEEDS = (0, 1, 2)


def main() -> None:
    """Run the seeds one after the other, each in a process of its own, and compare."""
    options = arguments(__doc__ or "")
    seeds, steps = (SEEDS[:1], 4) if options.quick else (SEEDS, 18)
    started = time.monotonic()
    with scratch(options.root) as root:
        runs = [_train(root, seed, steps, options.quick) for seed in seeds]
    before, after = _by_function(runs, "before"), _by_function(runs, "after")
    gain = difference_interval(before, after)
    rows = [
        [
            run["seed"],
            run["before"]["mean_reward"],
            run["after"]["mean_reward"],
            _first3(run),
            _last3(run),
            run["minutes"],
        ]
        for run in runs
    ]
    figures = {
        "heldout_before": _mean(before),
        "heldout_after": _mean(after),
        "ci_low": gain.low,
        "ci_high": gain.high,
        "score_first3": float(np.mean([_first3(run) for run in runs])),
        "score_last3": float(np.mean([_last3(run) for run in runs])),
        "minutes": (time.monotonic() - started) / 60,
    }
    columns = ["seed", "held-out before", "after", "training, first 3 steps", "last 3", "minutes"]
    report(f"learning: {steps} steps, {len(before)} held-out functions", columns, rows, figures)


def _train(root: Path, seed: int, steps: int, quick: bool) -> dict[str, Any]:
    pool = root / "pools" / f"kata-{seed}"
    build_pool(pool, seed=seed)
    name = f"seed-{seed}"
    settings = [
        f"experiment={name}", "project=learning", f"schedule.total_steps={steps}", f"data.seed={seed}",
        f"data.train={pool}/train.parquet", f"data.heldout={pool}/heldout.parquet",
        f"evaluation.max_tasks={12 if quick else 68}",
    ]  # fmt: skip
    command = [str(Path(sys.executable).with_name("testgrad")), "train", str(CONFIG), "--root", str(root)]
    say(f"seed {seed}: training {steps} steps")
    started = time.monotonic()
    subprocess.run(command + [part for s in settings for part in ("--set", s)], check=True, stdout=sys.stderr)
    journal = Journal(root / "learning" / name)
    result = {
        "seed": seed,
        "minutes": (time.monotonic() - started) / 60,
        "before": read_json(journal.stage_dir(eval_label(0)) / "record.json"),
        "after": read_json(journal.stage_dir(eval_label(steps)) / "record.json"),
        "scores": [
            (read_json(journal.stage_dir(step_label(s)) / "record.json") or {})["metrics"]["critic/score/mean"]
            for s in range(1, steps + 1)
        ],
    }
    shutil.rmtree(journal.checkpoints, ignore_errors=True)
    return result


def _by_function(runs: list[dict[str, Any]], when: str) -> dict[str, list[float]]:
    rewards: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for function, values in run[when]["clusters"].items():
            rewards[function] += values
    return rewards


def _mean(rewards: dict[str, list[float]]) -> float:
    return float(np.mean([np.mean(values) for values in rewards.values()]))


def _first3(run: dict[str, Any]) -> float:
    return float(np.mean(run["scores"][:3]))


def _last3(run: dict[str, Any]) -> float:
    return float(np.mean(run["scores"][-3:]))


if __name__ == "__main__":
    main()
