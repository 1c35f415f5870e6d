"""How far `testgrad plan` is from what runs: step times as simulated and as measured, in each mode, in two sizes.

The runs are those of `bench.async_`: real engines, learner, proxy, sandboxes, grading and journal on a small policy,
trials that wait for a log-normal time. Size is the number of groups in a step. The run in mode sync of each size is
measured by its journal alone; from that all its modes are predicted, by playing its very trials: sync, which says
whether the simulation adds up, and the modes that sample ahead, which it has not seen. A step lasts from one record to
the next. `worst_error` is the largest deviation of a prediction from what was measured, as a share of that.
"""

from pathlib import Path
from typing import Any

import numpy as np

from bench.async_ import MODES, run_config, run_mode
from bench.output import arguments, report, say, scratch
from flows.config import load_config
from flows.plan.forecast import replay
from flows.plan.layout import Layout
from flows.plan.measure import measure
from flows.plan.sweep import workload_of
from tasks.journal import Journal, step_label

STALENESS = 1
"""With a larger bound, runs of this length would be over before they have come to a steady state."""
SKIPPED = 2
"""First steps that are not counted: engines warm up, and what is sampled ahead gets its lead."""
STILL = "learner.lr=1e-12"
"""No policy learns: how many groups carry a signal, and so how long an update takes, would differ from run to run."""
ENDING = STALENESS + 1
"""Last steps that are not counted: no more trials begin, and a step may wait for a straggler that took the place of a
dropped group, of which the journal of another mode knows nothing."""


def main() -> None:
    """Run, predict, compare."""
    options = arguments(__doc__ or "")
    sizes, modes, steps = ([4], ("sync", "async"), 8) if options.quick else ([4, 8], MODES, 14)
    rows: list[list[object]] = []
    with scratch(options.root) as root:
        root.chmod(0o755)  # sandboxes have users of their own
        for size in sizes:
            rows += _compare(root / f"groups-{size}", size, modes, steps)
    errors = [abs(float(str(row[-1]))) for row in rows]
    columns = ["groups a step", "mode", "measured, s a step", "predicted", "error"]
    report("plan: predicted against measured", columns, rows, {"worst_error": max(errors)})


def _compare(root: Path, groups: int, modes: tuple[str, ...], steps: int) -> list[list[object]]:
    root.mkdir(exist_ok=True)
    path = run_config(root, steps, median=1.0, groups=groups)
    for mode in modes:
        run_mode(root, path, mode, steps, f"staleness.max_staleness={STALENESS}", STILL)
    runs = root / "runs"
    # what is measured of engines that warm up says nothing, but their trials are played too
    played = measure(runs, "async/sync", skip=0).groups
    profile = measure(runs, "async/sync", skip=SKIPPED).model_copy(update={"groups": played})
    workload = workload_of(load_config(path, ["experiment=plan"]), max_staleness=STALENESS)
    rows: list[list[object]] = []
    for mode in modes:
        layout: Any = Layout(mode, 1, 1, shared=True)  # type: ignore[arg-type]
        expected = replay(profile, layout, workload, steps=steps, skip=SKIPPED, ending=ENDING).step_seconds
        found = _seconds_a_step(Journal(runs / "async" / mode), steps)
        rows.append([groups, mode, found, expected, expected / found - 1])
        say(f"{groups} groups, {mode}: {found:.2f} s a step, predicted {expected:.2f}")
    return rows


def _seconds_a_step(journal: Journal, steps: int) -> float:
    """From the record of the last skipped step to that of the last that is counted."""
    labels = [step_label(step) for step in range(SKIPPED, steps - ENDING + 1)]
    written = [(journal.stage_dir(label) / "record.json").stat().st_mtime for label in labels]
    return float(np.diff(written).mean())


if __name__ == "__main__":
    main()
