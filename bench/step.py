"""What orchestration costs: a step's wall time over the sum of its floors, measured in the same run on the same data.

The floors of a step, one after the other with the machine to itself: the engine alone generating as many tokens from
the same prompts; grading alone, all patches of the step; the learner alone updating on the same batch; one copy of the
weights in memory. A step overlaps trials with grading, so it may come out below their sum.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.output import arguments, report, say, scratch
from flows.environment import prepare, tracking_uri

CONFIG = Path(__file__).parent.parent / "deployments" / "runs" / "quickstart.yaml"


def main() -> None:
    """Run steps; after each measure its floors."""
    options = arguments(__doc__ or "")
    with scratch(options.root) as root:
        prepare(root)
        rows = asyncio.run(_measure(root, steps=1 if options.quick else 3))
    wall, floors = sum(row["step"] for row in rows), sum(row["floors"] for row in rows)
    columns = ["step", "wall s", "floors s", "engine", "grading", "update", "memcpy", "ratio"]
    table = [
        [
            row["number"],
            *(float(row[k]) for k in ("step", "floors", "engine", "grading", "update", "memcpy")),
            row["step"] / row["floors"],
        ]
        for row in rows
    ]
    report("step: wall time over floors", columns, table, {"overhead_ratio": wall / floors})


async def _measure(root: Path, steps: int) -> list[dict[str, float]]:
    from flows.config import load_config
    from flows.open_run import open_run
    from flows.step import rl_step
    from tasks.prepare import prepare_model, prepare_pools
    from tasks.recover import recover
    from tasks.start_engines import start_engines, stop_engines
    from trainer.placement import ray_cluster

    config = load_config(CONFIG, ["experiment=step", "project=bench"])
    run = open_run(config, root, tracking_uri(root))
    model = await prepare_model.fn(run, config.model)
    await prepare_pools.fn(run, config.data, config.rollout)
    rows = []
    with ray_cluster():
        try:
            await start_engines.fn(run, model, config.serving, config.learner, config.algorithm, [])
            await recover.fn(run, config.rollout.temperature, config.serving)
            updates = 0
            for number in range(steps + 1):
                # each step is a run of its own: the floors' extra update belongs to no step
                await _align(run, updates, config)
                started = time.monotonic()
                await rl_step(run, updates + 1, model)
                wall = time.monotonic() - started
                say(f"step {number}: {wall:.1f} s{' (warm-up)' if number == 0 else ''}")
                if number:
                    floors = await _floors(run, updates + 1, config)
                    rows.append({"number": number, "step": wall, "floors": sum(floors.values())} | floors)
                    say("  floors: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in floors.items()))
                    updates += 1
                updates += 1
        finally:
            await stop_engines(run)
    return rows


async def _align(run: Any, updates: int, config: Any) -> None:
    from tasks.sync_weights import bring_to_version

    await bring_to_version(run, updates, config.serving)


async def _floors(run: Any, step: int, config: Any) -> dict[str, float]:
    from tasks.journal import step_label
    from tasks.trial_files import load_trial

    label = step_label(step)
    trials = [load_trial(folder) for folder in run.journal.trials(label)]
    return {
        "engine": await _timed(_generate(run, trials, config)),
        "grading": await _timed(_grade(trials, config)),
        "update": await _timed(_update(run, step, label, config)),
        "memcpy": _memcpy_seconds(run.root),
    }


async def _timed(work: Any) -> float:
    started = time.monotonic()
    await work
    return time.monotonic() - started


async def _generate(run: Any, trials: list[Any], config: Any) -> None:
    from dataclasses import replace

    from trainer.serving.pool import ReplicaPool

    pool = ReplicaPool.attach(run.name)
    rollouts = [rollout for trial in trials for rollout in trial.rollouts()]
    requests = [
        (
            r.token_ids[: r.prompt_length],
            replace(config.rollout.sampling, min_tokens=r.response_length, max_tokens=r.response_length),
        )
        for r in rollouts
    ]
    await asyncio.gather(
        *(pool.generate(ids, sampling, f"floor-{i}-{os.getpid()}") for i, (ids, sampling) in enumerate(requests))
    )


async def _grade(trials: list[Any], config: Any) -> None:
    from harness.pool.task import Task
    from harness.verifier import grade

    work = [
        grade(Task.load(Path(trial.record["task_path"])), trial.patch(), config.sandbox, config.verifier)
        for trial in trials
        if trial.verdict is not None
    ]
    await asyncio.gather(*work)


async def _update(run: Any, step: int, label: str, config: Any) -> None:
    from trainer.learner.group import LearnerGroup

    batch = run.journal.stage_dir(label) / "batch.parquet"
    await LearnerGroup.attach(run.name).update(step + 1, batch, config.rollout.temperature)


def _memcpy_seconds(root: Path) -> float:
    size = sum(path.stat().st_size for path in (root / "models").rglob("*.safetensors"))
    source = np.ones(size, dtype=np.uint8)
    target = np.empty_like(source)
    target[:] = 0
    started = time.monotonic()
    np.copyto(target, source)
    return time.monotonic() - started


if __name__ == "__main__":
    main()
