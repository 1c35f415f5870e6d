"""`testgrad pool build` by the command line: killed in the middle, called again, and never two at a time."""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from support import integration
from support.integration import TEMPORARY, command, environment, leftover_processes, wait_for

from harness.pool.builder import Store
from harness.pool.index import PoolError, read_index
from harness.pool.kata.catalogue import CATALOGUE
from harness.pool.task import Task

FUNCTIONS, TASKS = 8, 6


def make_package(folder: Path) -> Path:
    """A package of some functions of the catalogue, with their tests."""
    files = {"pyproject.toml": '[project]\nname = "katas"\nversion = "1"\n', "katas/__init__.py": ""}
    for kata in list(CATALOGUE.values())[:: len(CATALOGUE) // FUNCTIONS][:FUNCTIONS]:
        files[f"katas/{kata.name}.py"] = kata.source
        test = kata.test_source.replace("from solution import", f"from katas.{kata.name} import")
        files[f"tests/test_{kata.name}.py"] = test
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def admissions(pool: Path) -> list[str]:
    """Ids of the graded tasks, in order, as far as their lines are whole."""
    files = list(pool.glob(".build/admissions/*.jsonl"))
    lines = files[0].read_bytes().splitlines(keepends=True) if files else []
    return [json.loads(line)[0] for line in lines if line.endswith(b"\n")]


def test_a_build_that_was_killed_goes_on_and_two_at_once_refuse(tmp_path: Path, root: Path) -> None:
    pool = TEMPORARY / "built"  # where sandboxes, which have users of their own, can reach it
    source = make_package(tmp_path / "katas")
    words = ("pool", "build", "--source", source, "--target", pool, "--tasks", str(TASKS))
    first = subprocess.Popen(
        command(*words, root=root), env=environment(), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while not admissions(pool):
        assert first.poll() is None, first.stdout and first.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(PoolError, match="another build runs on"), Store(pool).held():
        pass
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    done = admissions(pool)
    assert not (pool / "index.parquet").exists()

    lock = pool / ".build" / "lock"
    lock.unlink()
    second = subprocess.Popen(
        command(*words, root=root), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while not lock.exists():
        assert second.poll() is None and time.monotonic() < deadline, second.stdout and second.stdout.read()
        time.sleep(0.05)
    second.terminate()
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 130 and "goes on where this build stopped" in said and "Traceback" not in said, said
    wait_for(lambda: not leftover_processes(), 60)

    again = integration.testgrad(*words, root=root)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"{TASKS} tasks of this build" in again.stdout
    rows = read_index(pool / "index.parquet")
    assert len(rows) == TASKS == len({row.extra["file"] + row.extra["bug"] for row in rows})
    assert all(Task.load(row.task_path).grading.fail_to_pass for row in rows)
    assert set(Counter(admissions(pool)).values()) == {1} and admissions(pool)[: len(done)] == done
    assert not list((pool / "tasks").glob(".new.*"))
    wait_for(lambda: not leftover_processes(), 60)
