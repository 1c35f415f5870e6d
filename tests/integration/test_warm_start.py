"""A warm start by the command line: killed in the midst, gone on with, and the weights are what they should be.

It boots engines twice and takes minutes: `TESTGRAD_ALL_WARM_START=1` runs it.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from support.integration import TEMPORARY, command, environment, leftover_processes, testgrad
from support.tasks import BUGGY, FIXED, write_task
from transformers import AutoModelForCausalLM

from harness.pool.index import TaskPointer, write_index
from tasks.journal import Journal, step_label
from trainer.learner.config import LearnerConfig
from trainer.learner.group import LearnerGroup
from trainer.model import check_model_folder
from trainer.supervised import ALGORITHM

pytestmark = pytest.mark.skipif("TESTGRAD_ALL_WARM_START" not in os.environ, reason="TESTGRAD_ALL_WARM_START=1 runs it")

STEPS = 4
LEARNER = {"lr": 1e-3, "dtype": "float32", "lr_schedule": "cosine"}


@pytest.fixture
def index() -> Iterator[Path]:
    """Six tasks with their fixes, where sandboxes can reach them."""
    folder = Path(tempfile.mkdtemp(dir=TEMPORARY.parent))
    folder.chmod(0o755)
    rows = []
    for number in range(6):
        path = write_task(folder / f"add-{number}", {"solution.py": f"# {number}\n{BUGGY}"})
        (path / "solution" / "files").mkdir(parents=True)
        (path / "solution" / "files" / "solution.py").write_text(f"# {number}\n{FIXED}")
        rows.append(TaskPointer(path.name, path))
    write_index(rows, folder / "train.parquet")
    yield folder / "train.parquet"
    shutil.rmtree(folder)


def test_killed_and_gone_on_with(models: dict[str, Path], index: Path, root: Path) -> None:
    words = [
        "warm-start", "--name", "killed", "--model", models["tied"], "--demonstrations", index,
        "--batch-size", "2", "--epochs", "2", "--validation", "0.2", "--lr", "1e-3",
        "--set", "learner.dtype=float32", "--save-every", "3",
    ]  # fmt: skip
    journal = Journal(root / "warm-starts" / "killed")
    process = subprocess.Popen(command(*words, root=root), env=environment(), stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: (journal.stage_dir(step_label(2)) / "update.json").is_file() or process.poll() is not None)
        assert process.poll() is None, "it ended before it could be killed"
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
    finally:
        process.kill()
    wait_for(lambda: not leftover_processes())
    for path in TEMPORARY.iterdir():
        shutil.rmtree(path, ignore_errors=True)
    before = {step: journal.stage(step_label(step), "update.json") for step in journal.finished_steps("update.json")}
    trials = {path: path.stat().st_mtime_ns for path in (journal.root / "trials").rglob("*.json")}

    again = testgrad(*words, "--json", root=root)
    assert again.returncode == 0, again.stdout + again.stderr
    summary = json.loads(again.stdout.splitlines()[-1])
    assert summary["steps"] == STEPS and "replaying update" in again.stderr
    assert {step: journal.stage(step_label(step), "update.json") for step in before} == before
    assert trials == {path: path.stat().st_mtime_ns for path in (journal.root / "trials").rglob("*.json")}
    assert summary["corpus"]["train"]["trajectories"] + summary["corpus"]["validation"]["trajectories"] == 6
    assert summary["val_loss"][str(STEPS)] < summary["val_loss"]["0"], "fixes of other functions have become likelier"
    check_model_folder(Path(summary["model"]))


@pytest.mark.asyncio(loop_scope="module")
async def test_it_learnt_what_an_uninterrupted_learner_would(
    cluster: None, models: dict[str, Path], root: Path
) -> None:
    """After the test above: its batches in one go give its weights, and its loss is the plain one of those tokens."""
    journal = Journal(root / "warm-starts" / "killed")
    group = await LearnerGroup.start("warm/again", models["tied"], LearnerConfig(**LEARNER).over(STEPS), ALGORITHM)
    try:
        for step in range(1, STEPS + 1):
            batch = journal.stage_dir(step_label(step)) / "batch.parquet"
            record = await group.update(step, batch, 1.0)
            stored = journal.stage(step_label(step), "update.json")
            assert stored is not None and record.fingerprint == stored["fingerprint"], f"step {step}"
            if step == 1:
                expected = plain_loss(models["tied"], batch)
                assert record.metrics["actor/pg_loss"] == pytest.approx(expected, rel=1e-4)
    finally:
        group.shutdown()


def plain_loss(model: Path, batch: Path) -> float:
    """Mean cross entropy of the tokens with loss mask 1, one sequence after the other."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    losses = []
    for row in pq.read_table(batch).to_pylist():
        ids, mask = torch.tensor([row["token_ids"]]), torch.tensor(row["loss_mask"])
        with torch.no_grad():
            logits = policy(ids).logits[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")[mask[1:] == 1])
    return float(torch.cat(losses).mean())


def wait_for(condition: object, seconds: float = 500.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.1)
