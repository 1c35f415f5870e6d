"""`testgrad collect` in real sandboxes, killed in the middle and called again; only the policy's server is a script."""

import asyncio
import json
import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.endpoint import MODEL, fake_server, said
from support.integration import command, environment, leftover_processes, wait_for
from support.tasks import BUGGY, FIXED, write_task
from typer.testing import CliRunner

from flows.commands.pool import pool_app
from harness.pool.index import TaskPointer, read_index, write_index
from tasks.collection import LABEL
from tasks.journal import Journal
from tasks.lease import LeaseError, lease
from tasks.trial_files import StoredTrial, load_trial
from trainer.rollout import Outcome

ATTEMPTS = 5
TASKS = ("never", "always", "mixed", "ill")


class Policy:
    """Knows by task how to answer, and remembers which of its numbered answers were right. At first `ill` gets none."""

    def __init__(self) -> None:
        self.right: dict[int, bool] = {}
        self.asked: Counter[str] = Counter()
        self.up = False

    def __call__(self, body: dict[str, Any]) -> Any:
        name = re.search(r"task ([a-z]+)", body["messages"][-1]["content"])
        if name is None:
            return said("yes")
        task = name[1]
        if task == "ill" and not self.up:
            return 500, {"error": {"message": "out of memory"}}
        self.asked[task] += 1
        number = len(self.right)
        self.right[number] = task in ("always", "ill") or (task == "mixed" and self.asked[task] % 2 == 1)
        return said(f"```python\n{FIXED if self.right[number] else BUGGY}# answer {number}\n```\n")


def write_pool(folder: Path) -> Path:
    """An index of `TASKS`, whose hidden tests take a shell and no Python."""
    for name in TASKS:
        task = write_task(folder / name)
        (task / "instruction.md").write_text(f"This is task {name}. Mend `add`.\n")
        config = task / "task.toml"
        config.write_text(config.read_text().partition("[metadata]")[0] + '[metadata]\nreport = "script"\n')
        (task / "tests" / "test.sh").write_text(
            'case "$(cat /workspace/solution.py)" in *"a + b"*) reward=1;; *) reward=0;; esac\n'
            "echo $reward > /logs/verifier/reward.txt\n"
        )
    write_index([TaskPointer(name, folder / name) for name in TASKS], folder / "index.parquet")
    return folder / "index.parquet"


def trials(journal: Journal) -> list[StoredTrial]:
    return [load_trial(folder) for folder in journal.trials(LABEL)]


def counted(journal: Journal) -> dict[str, int]:
    """Sessions that are graded, and when their verdicts were written."""
    return {
        folder.name: (folder / "verdict.json").stat().st_mtime_ns
        for folder in journal.trials(LABEL)
        if (folder / "verdict.json").is_file()
    }


async def test_a_collection_that_was_killed_goes_on(tmp_path: Path, root: Path) -> None:
    index, policy = write_pool(tmp_path / "pool"), Policy()
    journal = Journal(root / "collections" / "killed")
    async with fake_server(policy) as server:
        words = ["collect", "--endpoint", server.url, "--model", MODEL, "--index", index, "--attempts", ATTEMPTS]
        words += ["--name", "killed", "--no-probe", "--json"]
        words += ["--set", "rollout.concurrency=2", "--set", "rollout.infra_attempts=1"]

        first = await start(*words, root=root)
        while len(counted(journal)) < 6 or not any(t.outcome is Outcome.INFRA_ERROR for t in trials(journal)):
            assert first.returncode is None, (await first.communicate())[0]
            await asyncio.sleep(0.02)
        with pytest.raises(LeaseError, match=rf"held by process {first.pid} on .*\(collect, since"):
            with lease(journal.root, "collect"):
                pass
        os.kill(first.pid, signal.SIGKILL)
        await first.wait()
        while leftover_processes():
            await asyncio.sleep(0.1)
        before = counted(journal)
        ended = {trial.session_id for trial in trials(journal)}
        ungraded = {t.session_id for t in trials(journal) if not t.verdict and t.outcome is not Outcome.INFRA_ERROR}
        assert 6 <= len(before) < ATTEMPTS * len(TASKS), "it was killed in the middle"
        lost = len(ended) - len(before) - len(ungraded)

        policy.up = True
        second = await start(*words, root=root)
        told = await asyncio.wait_for(second.communicate(), 300)
        assert second.returncode == 0, told[0] + told[1]
    record = json.loads(told[0])

    assert before.items() <= counted(journal).items(), "what had been graded was touched again"
    new = {trial.session_id for trial in trials(journal)} - ended
    assert len(new) == ATTEMPTS * len(TASKS) - len(before) - len(ungraded), "some trial was lost, or made twice"
    rates = {row["task_id"]: row for row in pq.read_table(journal.root / "rates.parquet").to_pylist()}
    assert {name: row["n"] for name, row in rates.items()} == dict.fromkeys(TASKS, ATTEMPTS)
    assert lost >= 1 and rates["ill"]["lost"] == lost == record["lost"], "infrastructure is no failure"
    assert (rates["never"]["k"], rates["always"]["k"], rates["ill"]["k"]) == (0, ATTEMPTS, ATTEMPTS)
    assert_verdicts_are_true(journal, policy, rates)
    assert (record["coverage"], record["mixed"], record["done"]["lost"]) == (1.0, 1, 0)
    assert_mlflow_has_it(root, record)
    assert_difficulty_keeps_what_is_mixed(index, root, tmp_path)
    wait_for(lambda: not leftover_processes(), 60)


async def start(*words: object, root: Path) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    arguments = command(*map(str, words), root=root)
    return await asyncio.create_subprocess_exec(*arguments, env=environment(), stdout=pipe, stderr=pipe)


def assert_verdicts_are_true(journal: Journal, policy: Policy, rates: dict[str, Any]) -> None:
    """Each answer is in one trial at most, and that trial passed if the answer was right."""
    seen: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for trial in trials(journal):
        if trial.outcome is Outcome.INFRA_ERROR:
            assert trial.verdict is None
            continue
        (content,) = trial.patch().files.values()
        number = re.search(rb"# answer (\d+)", content or b"")
        assert number is not None and trial.verdict is not None
        seen[number[1].decode()] += 1
        assert (trial.verdict.reward == 1.0) == policy.right[int(number[1])]
        passed[str(trial.record["task_id"])] += trial.verdict.reward == 1.0
    assert set(seen.values()) == {1}
    assert {name: passed[name] for name in TASKS} == {name: row["k"] for name, row in rates.items()}
    assert 0 < passed["mixed"] < ATTEMPTS


def assert_mlflow_has_it(root: Path, record: dict[str, Any]) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{root}/mlflow.db")
    experiment = client.get_experiment_by_name("collections")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    metrics = run.data.metrics
    assert metrics["collect/coverage"] == 1.0 and metrics["collect/mean_pass_rate"] == record["mean_pass_rate"]
    assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {"rates.parquet", "report.md"}


def assert_difficulty_keeps_what_is_mixed(index: Path, root: Path, tmp_path: Path) -> None:
    words = ["difficulty", index, "--from", "killed", "-o", tmp_path / "useful.parquet", "--root", root]
    result = CliRunner().invoke(pool_app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    (kept,) = read_index(tmp_path / "useful.parquet")
    assert kept.instance_id == "mixed" and kept.extra["trials"] == ATTEMPTS
    assert "| ill | 5 of 5 |" in (tmp_path / "useful.md").read_text()
