"""The built pool: proven, split by function, repeatable, complete or absent."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.pool.index import PoolError, read_index
from harness.pool.kata import build, build_pool
from harness.pool.task import Task

SMALL = ("add", "double", "is_even", "between", "clamp", "sign", "factorial", "sum_to")


@pytest.fixture
def small_catalogue(monkeypatch):
    """A few functions, for tests that build more than once."""
    monkeypatch.setattr(build, "CATALOGUE", {name: build.CATALOGUE[name] for name in SMALL})


def contents(root: Path) -> dict[str, bytes]:
    return {str(f.relative_to(root)): f.read_bytes() for f in sorted(root.rglob("*")) if f.is_file()}


def run_tests(task: Task, files: Path, folder: Path) -> dict[str, str]:
    """Test id to its word, by an independent run of unittest on the task's files."""
    shutil.copytree(files, folder)
    shutil.copytree(task.tests, folder, dirs_exist_ok=True)
    command = [sys.executable, "-B", "-m", "unittest", "-v", "test_solution"]
    report = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60).stderr
    words = {}
    for line in report.splitlines():
        if " ... " in line:
            name, word = line.split(" ... ")
            words["test_solution.TestSolution." + name.split(" ")[0]] = word
    return words


def test_it_is_large_enough_and_split_by_function(kata_pool):
    train, heldout = read_index(kata_pool.train), read_index(kata_pool.heldout)
    functions = [{p.extra["function"] for p in rows} for rows in (train, heldout)]
    assert len(train) + len(heldout) >= 300
    assert len(functions[0] | functions[1]) >= 60
    assert len(functions[1]) >= 24
    assert not functions[0] & functions[1]
    assert {p.extra["split"] for p in train} == {"train"}
    assert {p.extra["split"] for p in heldout} == {"heldout"}
    assert {p.extra["theme"] for p in heldout} == {p.extra["theme"] for p in train}
    counts = json.loads((kata_pool.root / "pool.json").read_text())
    assert (counts["train_tasks"], counts["heldout_tasks"]) == (len(train), len(heldout))


def test_every_task_loads_and_agrees_with_its_pointer(kata_pool):
    sources = set()
    for pointer in read_index(kata_pool.train) + read_index(kata_pool.heldout):
        task = Task.load(pointer.task_path)
        assert task.task_id == pointer.instance_id
        assert task.instruction.startswith(f"The function `{pointer.extra['function']}` in solution.py has a bug.")
        assert task.editable_files() == ["solution.py"]
        assert task.config.metadata["bug"] == pointer.extra["bug"]
        assert task.config.environment.network_mode == "no-network"
        sources.add((task.snapshot / "solution.py").read_text())
    assert len(sources) == len(read_index(kata_pool.train)) + len(read_index(kata_pool.heldout))


def test_a_function_gets_various_bugs(kata_pool):
    bugs: dict[str, list[str]] = {}
    for pointer in read_index(kata_pool.train):
        bugs.setdefault(pointer.extra["function"], []).append(pointer.extra["bug"])
    assert sum(len(set(kinds)) >= 3 for kinds in bugs.values()) > 0.9 * len(bugs)


def test_bugs_are_proven_by_an_independent_run(kata_pool, tmp_path):
    pointers = random.Random(1).sample(read_index(kata_pool.train) + read_index(kata_pool.heldout), 12)
    for pointer in pointers:
        task = Task.load(pointer.task_path)
        broken = run_tests(task, task.snapshot, tmp_path / pointer.instance_id)
        assert sorted(t for t, word in broken.items() if word != "ok") == sorted(task.grading.fail_to_pass)
        assert sorted(t for t, word in broken.items() if word == "ok") == sorted(task.grading.pass_to_pass)
        solved = run_tests(task, task.solution, tmp_path / f"{pointer.instance_id}-solved")
        assert set(solved.values()) == {"ok"}
        assert set(solved) == set(broken)


@pytest.mark.usefixtures("small_catalogue")
def test_the_same_seed_gives_the_same_bytes(tmp_path):
    first = build_pool(tmp_path / "a", seed=3, bugs_per_function=3, workers=1)
    second = build_pool(tmp_path / "b", seed=3, bugs_per_function=3, workers=2)
    other = build_pool(tmp_path / "c", seed=4, bugs_per_function=3)
    assert contents(first.root) == contents(second.root)
    assert {p.name for p in (first.root / "tasks").iterdir()} != {p.name for p in (other.root / "tasks").iterdir()}


@pytest.mark.usefixtures("small_catalogue")
def test_building_again_does_nothing(tmp_path, monkeypatch):
    calls = []
    paths = build_pool(tmp_path / "pool", bugs_per_function=1, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(n, len(SMALL)) for n in range(1, len(SMALL) + 1)]
    before = {f: f.stat().st_mtime_ns for f in paths.root.rglob("*")}
    monkeypatch.setattr(build, "prove", None)
    assert build_pool(tmp_path / "pool", bugs_per_function=1) == paths
    assert {f: f.stat().st_mtime_ns for f in paths.root.rglob("*")} == before


@pytest.mark.usefixtures("small_catalogue")
def test_another_pool_or_folder_is_never_overwritten(tmp_path):
    build_pool(tmp_path / "pool", seed=0, bugs_per_function=1)
    with pytest.raises(PoolError, match="seed is 0, not 1"):
        build_pool(tmp_path / "pool", seed=1, bugs_per_function=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(PoolError, match="not a kata pool"):
        build_pool(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()
    with pytest.raises(PoolError, match="at least 1"):
        build_pool(tmp_path / "none", bugs_per_function=0)


@pytest.mark.usefixtures("small_catalogue")
def test_an_interrupted_build_leaves_nothing(tmp_path):
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_pool(tmp_path / "pool", progress=stop)
    assert list(tmp_path.iterdir()) == []
    assert build_pool(tmp_path / "pool", bugs_per_function=1).train.is_file()
