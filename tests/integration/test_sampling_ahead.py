"""Whole runs in the modes that sample ahead, killed in the middle: no finished trial is lost, replays are exact.

Mode async is run; `TESTGRAD_ALL_RECOVERY=1` runs one_step_off as well.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.integration import command, environment, leftover_processes, testgrad

from tasks.draws import TAKEN
from tasks.journal import Journal, step_label

MODES = ["async", "one_step_off"] if os.environ.get("TESTGRAD_ALL_RECOVERY") else ["async"]
STEPS, GROUPS, ATTEMPTS = 4, 2, 2
PATIENCE_SECONDS = 300.0


def stored(journal: Journal, step: int, name: str) -> dict[str, Any]:
    return dict(json.loads((journal.stage_dir(step_label(step)) / name).read_text()))


def ended(journal: Journal) -> dict[str, int]:
    """Sessions of the trials that have ended, and when; which step took them is not seen."""
    return {path.parent.name: path.stat().st_mtime_ns for path in (journal.root / "trials").rglob("trial.json")}


def killed_once(condition: Callable[[], bool], *arguments: str | Path, root: Path) -> None:
    """Start a run, and kill it as soon as the condition holds."""
    process = subprocess.Popen(
        command(*arguments, root=root), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert process.poll() is None and time.monotonic() < deadline, "the run never came so far"
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
        while leftover_processes():
            assert time.monotonic() < deadline, f"{leftover_processes()} survived"
            time.sleep(0.2)
    finally:
        process.kill()


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_is_killed_goes_on_with_the_same_batches(run_config: Path, root: Path, mode: str) -> None:
    settings = [f"experiment={mode}", f"mode={mode}", f"schedule.total_steps={STEPS}", "schedule.save_freq=10"]
    settings += ["schedule.eval_before=false", "schedule.eval_after=false", "schedule.test_freq=3"]
    options = ["train", run_config, *(word for setting in settings for word in ("--set", setting))]
    journal = Journal(root / "test" / mode)

    killed_once(lambda: (journal.stage_dir(step_label(2)) / "update.json").is_file(), *options, root=root)
    newest = max(journal.finished_steps("update.json"))
    kept = ended(journal)
    known = {step: [stored(journal, step, name) for name in (TAKEN, "update.json")] for step in (1, 2)}

    again = testgrad(*options, root=root)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"replaying update {newest} of {newest}" in again.stdout
    assert journal.finished_steps() == list(range(1, STEPS + 1))
    assert kept.items() <= ended(journal).items(), "a trial that had ended is gone, or was made again"
    for step, files in known.items():
        assert [stored(journal, step, name) for name in (TAKEN, "update.json")] == files
    for step in range(1, STEPS + 1):
        metrics = stored(journal, step, "record.json")["metrics"]
        assert metrics["batch/rollouts"] == len(journal.trials(step_label(step))) == GROUPS * ATTEMPTS
        assert metrics["staleness/trained_age/max"] <= 1
        assert metrics["rollout_corr/rollout_is_eff_sample_size"] > 0
        assert stored(journal, step, "sync.json")["version"] == step
    consumed = [group for step in range(1, STEPS + 1) for group in stored(journal, step, TAKEN)["consumed"]]
    assert len(consumed) == len(set(consumed)) == STEPS * GROUPS
    ages = [stored(journal, step, "record.json")["metrics"]["staleness/age/mean"] for step in range(1, STEPS + 1)]
    assert any(age > 0 for age in ages), "nothing was sampled ahead"
