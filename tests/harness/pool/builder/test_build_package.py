"""A package from its source to its tasks, in real sandboxes: what is relied on, tried, admitted, and done only once."""

import asyncio
import json

import pytest

from harness.pool.builder import BuildConfig, PackageSource, SourceError, Store, build_package
from harness.pool.builder import package as module
from harness.pool.builder.emit import traces
from harness.pool.builder.package import open_package
from harness.pool.builder.runner import SuiteRun
from harness.pool.index import read_index
from harness.pool.task import Task
from harness.sandbox import SandboxConfig

CONFIG = BuildConfig(tasks_per_package=1, suite_runs=2, seed=1)


async def opened(package, tmp_path):
    store = Store(tmp_path / "pool")
    source = PackageSource.folder(str(package))
    with store.held():
        return await open_package(source, store, CONFIG, SandboxConfig(), asyncio.Semaphore(2))


async def test_a_suite_is_sorted_out_and_its_lines_are_known(package, tmp_path):
    shop = await opened(package, tmp_path)
    names = {test.partition("::")[2] for test in shop.baseline.tests}
    assert names == set(_reliable())
    reasons = {test.partition("::")[2]: why for test, why in shop.baseline.quarantined.items()}
    assert reasons["test_wrong"].startswith("failed: ") and reasons["test_skipped"].startswith("skipped")
    assert reasons["test_second_of_two"].startswith("flaky: passed in 1 of 2 runs")
    lines = (package / "mathy/core.py").read_text().splitlines()
    line = {text.strip(): number for number, text in enumerate(lines, start=1)}

    def covering(text):
        return {test.partition("::")[2] for test in shop.baseline.covering("mathy/core.py", 1 << line[text])}

    assert covering("return low") == {"test_clamp[-1-0]"}
    assert covering("if value > high:") == {"test_clamp[5-5]", "test_clamp[11-10]"}
    assert covering("result += value") == {"test_total", "TestParts::test_parts"}
    assert covering("def double(self):") == {"TestBox::test_double"}
    assert not covering("return value + 1")
    await _runs_end_as_they_must(shop)


async def _runs_end_as_they_must(shop):
    """A hang, a death and a syntax error are told apart, and none disturbs the next."""
    test, file = "tests/test_core.py::test_total", "mathy/core.py"
    clean = shop.files[file].text

    def run(key, text, seconds=20.0):
        return SuiteRun(key, ("tests/test_core.py",), (test,), {file: text}, seconds)

    hang, death, wrong = (
        clean.replace("    result = 0\n", f"    result = 0\n    {line}\n")
        for line in ("while True: pass", "import os; os._exit(3)", "result = 5")
    )
    results = await shop.runner.run(
        [run("hang", hang, 0.5), run("death", death), run("syntax", "def"), run("wrong", wrong), run("clean", clean)]
    )
    assert [result.ending for result in results] == ["hang", "crash", "ended", "ended", "ended"]
    assert not results[2].tests
    check = shop.layout.hidden["tests/test_core.py"].decode().splitlines().index("    assert total([1, 2, 3]) == 6")
    assert results[3].tests[test].status == "failed" and results[3].tests[test].line == check + 1
    assert results[3].tests[test].detail.startswith("AssertionError")
    assert results[4].tests[test].status == "passed"
    test = "tests/test_core.py::TestParts::test_parts"
    (parts,) = await shop.runner.run([run("parts", wrong)])
    assert parts.tests[test].status == "failed", "failed subtests fail their test"
    assert parts.tests[test].detail == "AssertionError with value = 1"


async def test_a_task_is_built_once_and_says_nothing_of_the_fix(package, tmp_path, monkeypatch):
    store, limit = Store(tmp_path / "pool"), asyncio.Semaphore(2)
    source = PackageSource.folder(str(package))
    told = []
    monkeypatch.setattr(module, "WAVE", 6)
    with store.held():
        result = await build_package(source, store, CONFIG, SandboxConfig(), limit, told.append)
        (pointer,) = read_index(store.write_index())
        # As after a kill: what was made of the bugs is kept, what came of the package is not.
        (store.build / "packages" / "mathy.json").unlink()
        monkeypatch.setattr(module, "try_candidates", None)
        monkeypatch.setattr(module, "first_look", None)
        again = await build_package(source, store, CONFIG, SandboxConfig(), limit)
        monkeypatch.setattr(module, "_open", None)
        assert await build_package(source, store, CONFIG, SandboxConfig(), limit) == again
    assert again.tasks == result.tasks and again.reasons == result.reasons
    assert result.candidates == len(result.tasks) + sum(result.reasons.values())
    assert [progress.stage for progress in told][:3] == ["source", "suite", "syntax"]
    task = Task.load(pointer.task_path)
    assert task.grading.report == "pytest" and task.grading.pass_to_pass
    assert set(task.grading.expected) == {f"tests/test_core.py::{name}" for name in _reliable()}
    (path, clean), *more = task.solution_changes().items()
    assert not more and clean == (package / path).read_bytes()
    broken = (task.snapshot / path).read_bytes()
    assert broken != clean and traces(task.path, clean.decode()) == []
    assert not (task.snapshot / "tests").exists() and not (task.snapshot / "mathy/core.py.orig").exists()
    changed = set(clean.decode().splitlines()) ^ set(broken.decode().splitlines())
    assert not any(line.strip() in task.instruction for line in changed if len(line.strip()) >= 10)
    assert pointer.extra["package"] == "mathy" and pointer.extra["grading_seconds"] > 0
    assert json.loads(next((store.build / "admissions").iterdir()).read_text().splitlines()[0])[0] == task.task_id


def _reliable():
    clamps = ["test_clamp[-1-0]", "test_clamp[5-5]", "test_clamp[11-10]"]
    return [*clamps, "test_total", "TestBox::test_double", "TestParts::test_parts"]


async def test_a_package_whose_tests_all_fail_is_refused(package, tmp_path):
    (package / "mathy/__init__.py").write_text("raise RuntimeError('gone')\n")
    with pytest.raises(SourceError, match="no test passes reliably"):
        await opened(package, tmp_path)


def test_leftovers_and_copies_are_traces(tmp_path):
    repo = tmp_path / "environment" / "repo"
    for name in ("a.py", "b.pyc", "c.py.orig", ".git/config", "dist/x-1.tar.gz"):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text("clean")
    found = traces(tmp_path, "clean")
    assert len(found) == 5 and "a.py is the clean file" in found


def test_unknown_kinds_and_too_few_gradings_are_refused():
    with pytest.raises(ValueError, match="are unknown; choose of"):
        BuildConfig(kinds=["nonsense"])
    with pytest.raises(ValueError, match="admission_runs"):
        BuildConfig(admission_runs=2)
