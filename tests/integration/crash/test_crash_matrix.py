"""No crash costs a trial: a run that is killed again and again ends with the weights of one that is left alone.

A dozen points are tried. The whole matrix takes longer than all other tests together: `TESTGRAD_CRASH_POINTS=71` runs
it, a smaller number takes so many points of it. With `TESTGRAD_TEST_POSTGRESQL=1` Prefect keeps its records in
PostgreSQL meanwhile.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.integration import environment, leftover_files, leftover_processes, shared_memory, wait_for
from support.served import prefect_database

POINTS = "TESTGRAD_CRASH_POINTS"


@pytest.mark.timeout(3 * 3600)
def test_no_crash_costs_a_trial_or_changes_a_weight(tmp_path: Path) -> None:
    before = shared_memory()
    points = os.environ.get(POINTS)
    command = [sys.executable, "-m", "bench.recovery", "--root", str(tmp_path), *([] if points else ["--quick"])]
    with prefect_database():
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["kill_points"] >= int(points or 12) * 0.9, "some points were passed before they could be tried"
    assert figures["lost_trials"] == 0 and figures["weights_identical"] is True
    wait_for(lambda: not leftover_processes() and not leftover_files(), 60)
    wait_for(lambda: shared_memory() <= before, 30)  # the guardian looks once a flow has ended
