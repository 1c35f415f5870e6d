"""No crash costs a trial: a run that is killed again and again ends with the weights of one that is left alone.

Some points of the matrix are tried here; `TESTGRAD_CRASH_POINTS=71` tries all of them, which takes about half an hour.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from support.integration import environment, leftover_files, leftover_processes, shared_memory

POINTS = "TESTGRAD_CRASH_POINTS"


def test_no_crash_costs_a_trial_or_changes_a_weight(tmp_path: Path) -> None:
    before = shared_memory()
    points = os.environ.get(POINTS)
    command = [sys.executable, "-m", "bench.recovery", *([] if points else ["--quick"]), "--root", str(tmp_path)]
    extra = {POINTS: points} if points else {}
    done = subprocess.run(command, env=environment() | extra, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["kill_points"] >= (int(points) if points else 6)
    assert figures["lost_trials"] == 0 and figures["weights_identical"] is True
    assert not leftover_processes() and not leftover_files() and shared_memory() <= before
