"""The gate in a whole run: a limit that no engine keeps stops it, with a cause found in the tokens of the step.

It boots engines for two steps: `TESTGRAD_ALL_FIDELITY=1` runs it.
"""

import json
import os
from pathlib import Path

import pytest
from support.integration import testgrad as run_testgrad

from tasks.journal import Journal, step_label

pytestmark = pytest.mark.skipif("TESTGRAD_ALL_FIDELITY" not in os.environ, reason="TESTGRAD_ALL_FIDELITY=1 runs it")


def test_a_run_stops_after_two_unfaithful_steps_and_says_why(run_config: Path, root: Path) -> None:
    options = [
        *("experiment=gated", "schedule.eval_before=false", "schedule.eval_after=false"),
        *("schedule.total_steps=3", "fidelity.threshold=1.0", "fidelity.max_mean_diff=1e-12", "fidelity.patience=2"),
    ]
    done = run_testgrad("train", run_config, *(part for option in options for part in ("--set", option)), root=root)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "engine and trainer disagree for 2 steps in a row, so training stops after step 2" in said
    assert "Likely cause: numerics" in said and "the engine computes in float32, the trainer in float32" in said
    journal = Journal(root / "test" / "gated")
    assert journal.finished_steps() == [1, 2]
    # the first step is only measured; the second is scored before its update
    scored = [(journal.stage_dir(step_label(step)) / "scores.parquet").is_file() for step in (1, 2)]
    assert scored == [False, True]
    report = json.loads((journal.stage_dir(step_label(2)) / "fidelity.json").read_text())
    assert report["steps"] == 2 and report["causes"][0]["cause"] == "numerics"
    log = (journal.root / "logs" / "gated.log").read_text()
    assert "warning 1 of step 1: fidelity: " in log and "the run stops at 2" in log
