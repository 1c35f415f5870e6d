"""A run whose processes are killed again and again, beside one that nobody disturbs."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.crash.cuts import Cut
from bench.crash.evidence import Evidence, first_difference, require_each_once
from bench.crash.flow_process import CUT, Start
from bench.crash.strikes import FILLER
from bench.crash.world import World
from bench.tiny import tiny_model
from harness.pool.index import read_index, write_index
from harness.pool.kata import build_pool
from tasks.journal import Journal, step_label
from tasks.rollout_ledger import Mode

POOL, TASKS, ATTEMPTS = 6, 2, 4
TRIALS = TASKS * ATTEMPTS
START_SECONDS = 1200.0
"""Longest that one start of the flow may take."""
DISK_MIB = 512
FAILURES = 3
"""Starts in a row that may come to nothing, as while a server that was killed comes up."""


class MatrixError(RuntimeError):
    """A run does not go on; the message has the end of its log."""


@dataclass
class Result:
    """What came out. `resumed` has, for starts after a cut, the seconds until the stage that was cut began again.

    `step_seconds` is what a step takes that is not cut, where that was measured.
    """

    made: list[Cut] = field(default_factory=list)
    missed: list[Cut] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    resumed: list[tuple[Cut, float]] = field(default_factory=list)
    step_seconds: float = 0.0
    first_other_step: int | None = None


def values(folder: Path, steps: int, mode: Mode, workers: bool) -> dict[str, Any]:
    """The run's config: a tiny policy in full precision, whose answers and weights are the same each time.

    What it needs is made in `folder`: a start that checks few tasks is soon at its first trial.
    """
    model = tiny_model(folder / "model")
    pools = build_pool(folder / "pools" / "kata", bugs_per_function=1)
    indexes = {"train": folder / "train.parquet", "heldout": folder / "heldout.parquet"}
    for name, index in indexes.items():
        write_index(read_index(getattr(pools, name))[:POOL], index)
    return {
        "project": "crash",
        "experiment": "run",
        "plugins": ["bench.crash.plugin"],
        "model": {"path": str(model)},
        "data": {name: str(index) for name, index in indexes.items()},
        # one trial at a time: what is computed beside it changes how an answer is rounded
        "rollout": {
            "tasks_per_step": TASKS, "attempts_per_task": ATTEMPTS, "max_tokens_per_turn": 24, "concurrency": 1,
            "workers": {"per_node": int(workers)},
        },
        "mode": mode,
        "algorithm": {"adv_estimator": "alternate_groups"}
        | ({"rollout_correction": {"mode": "off"}} if mode == "sync" else {}),
        "learner": {"lr": 1e-3, "dtype": "float32"},
        "serving": {"dtype": "float32", "window": 1024},
        "schedule": {
            "total_steps": steps, "save_freq": 2, "test_freq": 0, "eval_before": False, "eval_after": False,
        },
    }  # fmt: skip


def run_matrix(
    world: World, steps: int, cuts: Sequence[Cut], mode: Mode, workers: bool, say: Callable[[str], None]
) -> Result:
    """Run `steps` steps undisturbed, then again with all `cuts`, which come in the order of a run.

    `workers`: trials run in a Ray trial worker, not in the flow's process.

    Which weights sample a trial that is sampled ahead depends on how long others take: in those modes the weights of
    the disturbed run are compared with themselves, before and after each time that an update was made again.

    Raises:
        Leak: a flow that was killed has left something running.
        MatrixError: a run does not come to its end.
        Lost: a step has trials too many, or too few.
    """
    config = values(world.folder, steps, mode, workers)
    result = Result()
    say("the undisturbed run")
    quiet, disturbed = world.folder / "quiet", world.folder / "disturbed"
    reference = _undisturbed(world, config, steps, quiet)
    fills = any(cut.victim == "disk" for cut in cuts)
    with small_disk(disturbed) if fills else nullcontext() as has_end:
        if fills and not has_end:
            say("no disk of its own for the run (that takes root): none is filled")
            cuts = [cut for cut in cuts if cut.victim != "disk"]
        journal = Journal(disturbed / "crash" / "run")
        _disturb(world, config, disturbed, journal, cuts, result, say)
        require_each_once(journal, steps)
        if mode == "sync":
            other = first_difference(Evidence.of(reference), Evidence.of(journal))
            result.first_other_step = result.first_other_step or other
    return result


def run_whole_steps(world: World, cuts: Sequence[Cut], say: Callable[[str], None]) -> Result:
    """Run steps of the quickstart's size, on a policy of 47 M parameters, until the last one ends that is not cut.

    Raises:
        Leak, MatrixError, Lost: as `run_matrix` does.
    """
    steps, root = max(cut.step for cut in cuts) + 1, world.folder / "whole"
    config = values(world.folder, steps, "sync", workers=False)
    train = world.folder / "whole.parquet"
    write_index(read_index(build_pool(world.folder / "pools" / "kata", bugs_per_function=1).train)[:16], train)
    config |= {
        "experiment": "whole",
        "model": {"path": str(tiny_model(world.folder / "whole-model", hidden=768, layers=12))},
        "rollout": {"tasks_per_step": 8, "attempts_per_task": 8, "max_tokens_per_turn": 80},
        "learner": {"lr": 4e-5, "micro_batch_tokens": 1024},
        "serving": {"window": 1024, "max_num_seqs": 64},
    }
    config["data"] |= {"train": str(train)}
    result, journal = Result(), Journal(root / "crash" / "whole")
    say("steps of the quickstart's size")
    _disturb(world, config, root, journal, cuts, result, say)
    require_each_once(journal, steps)
    record = journal.stage(step_label(steps), "record.json")
    assert record is not None, "the run has come to its end"
    result.step_seconds = float(record["metrics"]["timing_s/step"])
    return result


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """`folder` as a file system of its own, which a run can fill; whether that could be had."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=755", "testgrad", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            # whoever still looks into it keeps it until then
            subprocess.run(["umount", "-l", str(folder)], check=True)


def _undisturbed(world: World, config: dict[str, Any], steps: int, root: Path) -> Journal:
    """The journal of a run that is killed once all is done, so that the next one finds engines of its name."""
    process, start = world.start(config, root, "undisturbed", [Cut("flow", steps, "record.json")])
    process.join(START_SECONDS)
    if process.exitcode != -signal.SIGKILL:
        process.kill()
        raise MatrixError(f"the undisturbed run ended with {process.exitcode}: {_tail(start)}")
    world.require_tidy("flow")
    return Journal(start.folder)


def _disturb(
    world: World, config: dict[str, Any], root: Path, journal: Journal, cuts: Sequence[Cut], result: Result,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """Start the run until it comes to its end, each time with the cuts up to the next one that ends the flow."""
    left, number, failures = list(cuts), 0, 0
    last: Cut | None = None
    while True:
        number += 1
        known = Evidence.of(journal)
        result.missed += [cut for cut in left if cut.is_past(journal.root)]
        left = [cut for cut in left if not cut.is_past(journal.root)]
        began = time.monotonic()
        process, start = world.start(config, root, f"{root.name}-{number:03d}", _next_start(left))
        _await(process, world, start)
        made = _cuts_made(start)
        if last is not None and (again := _stage_began(start, last.stage)) is not None:
            result.resumed.append((last, again - began))
        result.made += left[:made]
        for done in left[:made]:
            say(f"{len(result.made)} of {len(cuts)}: {done}")
        now = Evidence.of(journal)
        result.lost += known.lost_until(now)
        result.first_other_step = result.first_other_step or known.changed_until(now)
        if process.exitcode == 0:
            result.missed += left[made:]
            return
        world.require_tidy("flow")
        (root / FILLER).unlink(missing_ok=True)
        failures = 0 if made else failures + 1
        if failures > FAILURES:
            raise MatrixError(f"the run ends with {process.exitcode} time and again: {_tail(start)}")
        last = left[made - 1] if made and left[made - 1].victim == "flow" else None
        del left[:made]
        if started := world.keep_up():
            say(f"started again: {', '.join(started)}")


def _next_start(left: Sequence[Cut]) -> list[Cut]:
    ends = next((place for place, cut in enumerate(left, 1) if cut.victim == "flow"), len(left))
    return list(left[:ends])


def _await(process: Any, world: World, start: Start) -> None:
    """Wait for the flow's process; servers are started again meanwhile, as whoever runs them would."""
    deadline = time.monotonic() + START_SECONDS
    while process.is_alive():
        process.join(0.5)
        if time.monotonic() > deadline:
            process.kill()
            raise MatrixError(f"a start takes longer than {START_SECONDS:g} s: {_tail(start)}")
        world.keep_up()


def _notes(start: Start) -> list[tuple[float, str]]:
    lines = start.notes.read_text().splitlines() if start.notes.is_file() else []
    return [(float(moment), text) for moment, text in (line.split(" ", 1) for line in lines)]


def _cuts_made(start: Start) -> int:
    return sum(text.startswith(CUT) for _, text in _notes(start))


def _stage_began(start: Start, stage: str) -> float | None:
    return next((moment for moment, text in _notes(start) if text == stage), None)


def _tail(start: Start) -> str:
    text = start.log.read_text() if start.log.is_file() else "no log"
    return f"{start.log}: …{text[-1500:]}"
