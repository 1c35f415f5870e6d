"""A whole run over several raylets, which stand for nodes: one of each role is killed, and the run goes on by itself.

`TESTGRAD_ALL_NODES=1` runs it, in about two minutes on a quiet machine.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.integration import command, environment
from support.raylets import raylets

from tasks.journal import Journal, step_label
from trainer.nodes import ROLLOUT, TRAIN

pytestmark = pytest.mark.skipif("TESTGRAD_ALL_NODES" not in os.environ, reason="TESTGRAD_ALL_NODES=1 runs it")
STEPS, TRIALS = 4, 4


def test_a_run_survives_the_loss_of_the_node_that_trains_and_of_the_one_that_samples(
    run_config: Path, root: Path, tmp_path: Path
) -> None:
    settings = ["experiment=nodes", f"schedule.total_steps={STEPS}", "schedule.save_freq=10", "rollout.concurrency=1"]
    settings += ["schedule.eval_before=false", "schedule.eval_after=false"]
    options = ["train", run_config, *(word for setting in settings for word in ("--set", setting))]
    journal, log = Journal(root / "test" / "nodes"), tmp_path / "log"
    with raylets({}, [{TRAIN: 1}, {ROLLOUT: 1}]) as (cluster, (trains, samples)), open(log, "w") as output:
        reached = {name: os.environ[name] for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE")}
        process = subprocess.Popen(
            command(*options, root=root), env=environment() | reached | {"RAY_ADDRESS": cluster.address},
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:

            def wait(what: str, condition: Callable[[], bool]) -> None:
                deadline = time.monotonic() + 300
                while not condition():
                    assert process.poll() is None and time.monotonic() < deadline, (
                        f"no {what}: {log.read_text()[-3000:]}"
                    )
                    time.sleep(0.1)

            wait("trials of step 2", lambda: len(journal.trials(step_label(2))) >= 2)
            cluster.remove_node(trains, allow_graceful=False)
            wait("update of step 2", lambda: (journal.stage_dir(step_label(2)) / "update.json").is_file())
            wait("trials of step 3", lambda: len(journal.trials(step_label(3))) >= 2)
            kept = {path: path.stat().st_mtime_ns for path in (journal.root / "trials").rglob("trial.json")}
            cluster.remove_node(samples, allow_graceful=False)
            assert process.wait(300) == 0, log.read_text()[-3000:]
        finally:
            process.kill()
            process.wait()

    said = log.read_text()
    assert journal.finished_steps() == list(range(1, STEPS + 1)), said
    assert "replaying update 1 of 1" in said, "the learner that was lost has come back with its weights"
    trials = {path: path.stat().st_mtime_ns for path in (journal.root / "trials").rglob("trial.json")}
    assert kept.items() <= trials.items() and len(trials) == STEPS * TRIALS, "no trial was lost or made again"
