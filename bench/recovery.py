"""What a crash costs: one run is killed at each of many points and started again, another one is left alone.

A tiny policy in full precision, real engines, real sandboxes. SIGKILL goes to the flow's process on both sides of every
file that a step leaves, and at random instants within; to a learner's rank, to the engine, to Prefect's server and to
the whole Ray cluster in the middle of a step. The run is started again each time, by the same names. With
`--trials workers` trials run in a Ray trial worker, which is struck too, at fewer points.

`kill_points`: how many were carried out.
`lost_trials`: trials that had ended and are gone, or are others than before.
`weights_identical`: whether every update gave the very weights of the run that was left alone. With `--mode async` or
`one_step_off` weights depend on how long trials take, so there it means that each update that was made again gave the
weights that it had given before.
`resume_seconds_p50`: from the start of a flow whose engines outlived the one before to the stage that was cut, median.
`resume_over_step`: the same of a run whose steps have the quickstart's size, cut in its second step, over its third;
not measured in other modes, with workers, or with `--quick`.

Flows are forked from a process that has imported all they need, and Ray outlives them. `TESTGRAD_CRASH_POINTS` takes
only so many points.
"""

import os
from collections.abc import Sequence
from statistics import median

from bench.crash.cuts import Cut, boundaries, boundaries_ahead, instants
from bench.crash.evidence import Lost
from bench.crash.matrix import TRIALS, Result, run_matrix, run_whole_steps
from bench.crash.world import world
from bench.output import arguments, report, say, scratch
from tasks.draws import TAKEN

SEED = 7
STEPS = 6
POINTS = "TESTGRAD_CRASH_POINTS"


def main() -> None:
    """Kill, start again, compare."""
    options = arguments(__doc__ or "", mode=("sync", "one_step_off", "async"), trials=("flow", "workers"))
    workers = options.trials == "workers"
    cuts, steps = (quick_cuts(), 2) if options.quick else (all_cuts(), STEPS)
    if options.mode != "sync":
        cuts, steps = (quick_cuts_ahead(), 2) if options.quick else (all_cuts_ahead(), STEPS)
    elif workers:
        cuts, steps = worker_cuts(), 2
    if POINTS in os.environ:
        cuts = spread(cuts, int(os.environ[POINTS]))
    with scratch(options.root) as root, world(root) as found:
        say(f"{len(cuts)} kill points in {steps} steps")
        result = run_matrix(found, steps, cuts, options.mode, workers, say)
        is_usual = options.mode == "sync" and not workers and not options.quick
        whole = run_whole_steps(found, whole_step_cuts(), say) if is_usual else None
    _print(result, whole)


def all_cuts() -> list[Cut]:
    """In the order of a run."""
    others = [
        Cut("prefect", 3, "groups.parquet"),
        Cut("engine", 3, "trial.json", delay=0.2),
        Cut("databases", 3, "verdict.json", nth=2),
        Cut("rank", 3, "batch.parquet", delay=0.05),
        Cut("disk", 3, "update.json"),
        Cut("ray", 3, "sync.json"),
    ]
    return [
        *boundaries(1, TRIALS),
        *instants(2, 9, SEED),
        *others,
        *boundaries(4, TRIALS),
        *instants(5, 9, SEED + 1),
        Cut("engine", 6, "groups.parquet", delay=0.3),
        Cut("rank", 6, "update.json", "before"),
        Cut("rank", 6, "record.json"),
    ]


def quick_cuts() -> list[Cut]:
    """A dozen of the most telling, in two steps."""
    return [
        Cut("flow", 1, "groups.parquet", "before"),
        Cut("flow", 1, "trial.json", nth=2),
        Cut("flow", 1, "verdict.json", "before", nth=3),
        Cut("prefect", 1, "verdict.json", nth=5),
        Cut("flow", 1, "update.json", "before"),
        Cut("flow", 1, "sync.json", "before"),
        Cut("flow", 2, "groups.parquet", delay=0.3),
        Cut("flow", 2, "trial.json", "before", nth=5),
        Cut("rank", 2, "batch.parquet", delay=0.05),
        Cut("flow", 2, "update.json"),
        Cut("flow", 2, "trials.parquet", "before"),
        Cut("flow", 2, "record.json", "before"),
    ]


def whole_step_cuts() -> list[Cut]:
    """One in each stage of a step of 64 trials."""
    return [
        Cut("flow", 2, "trial.json", nth=16),
        Cut("flow", 2, "verdict.json", nth=40),
        Cut("flow", 2, "batch.parquet"),
        Cut("flow", 2, "update.json", "before"),
        Cut("flow", 2, "sync.json", "before"),
    ]


def worker_cuts() -> list[Cut]:
    """Trials run in a worker, which dies while it boots, in the middle of a trial, between two, and idle."""
    return [
        Cut("worker", 1, "groups.parquet", delay=1.5),
        Cut("worker", 1, "trial.json", delay=0.3),
        Cut("flow", 1, "trial.json", nth=3, delay=0.2),
        Cut("worker", 1, "trial.json", nth=TRIALS),
        Cut("flow", 1, "update.json", "before"),
        Cut("worker", 2, "trial.json", "before"),
        Cut("engine", 2, "trial.json", nth=2, delay=0.2),
        Cut("flow", 2, "verdict.json", nth=2),
    ]


def all_cuts_ahead() -> list[Cut]:
    """In about the order of a run that samples ahead: draw 2 is run while step 1 updates."""
    return [
        *boundaries_ahead(1, TRIALS),
        Cut("engine", 3, "trial.json", delay=0.2, ahead=True),
        Cut("rank", 2, "batch.parquet", delay=0.05, ahead=True),
        *boundaries_ahead(3, TRIALS),
        Cut("flow", 4, "update.json", delay=0.2, ahead=True),
        Cut("ray", 4, "sync.json", ahead=True),
        *boundaries_ahead(5, TRIALS),
        Cut("engine", 6, TAKEN, delay=0.3, ahead=True),
        Cut("rank", 6, "update.json", "before", ahead=True),
    ]


def quick_cuts_ahead() -> list[Cut]:
    """Some of them, in two steps."""
    return [
        Cut("flow", 1, "verdict.json", nth=2, ahead=True),
        Cut("flow", 1, TAKEN, "before", ahead=True),
        Cut("flow", 1, TAKEN, ahead=True),
        Cut("flow", 1, "update.json", "before", ahead=True),
        Cut("flow", 2, "sync.json", ahead=True),
        Cut("flow", 2, "record.json", "before", ahead=True),
    ]


def spread(cuts: Sequence[Cut], number: int) -> list[Cut]:
    """So many of them, from the whole length."""
    if not 1 <= number <= len(cuts):
        raise ValueError(f"{POINTS} is {number}; there are 1 to {len(cuts)} points")
    return [cuts[place * len(cuts) // number] for place in range(number)]


def _print(result: Result, whole: Result | None) -> None:
    runs = [result, whole] if whole is not None else [result]
    others = [run.first_other_step for run in runs if run.first_other_step is not None]
    lost = sum(len(run.lost) for run in runs)
    rows = [[str(cut), f"{seconds:.1f}"] for cut, seconds in result.resumed]
    figures = {
        "kill_points": len(result.made),
        "lost_trials": lost,
        "weights_identical": not others,
        "resume_seconds_p50": median(seconds for _, seconds in result.resumed),
    }
    if whole is not None:
        rows += [[f"of {whole.step_seconds:.1f} s a step, {cut}", f"{seconds:.1f}"] for cut, seconds in whole.resumed]
        figures["resume_over_step"] = median(seconds for _, seconds in whole.resumed) / whole.step_seconds
    for step in others:
        say(f"step {step} gave other weights than the run that was left alone, or than before")
    for cut in result.missed:
        say(f"not carried out, the run had come to its end: {cut}")
    report("recovery: seconds until a cut stage goes on", ["cut", "seconds"], rows, figures)
    if lost or others:
        raise Lost("trials were lost, or weights are others; see above")


if __name__ == "__main__":
    main()
