"""Reading and writing a task directory."""

import logging
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from harness.pool.schema import AgentSection, Grading, TaskConfig, TaskSection
from harness.pool.task import DEFAULT_AGENT_TIMEOUT, Task, TaskError
from harness.pool.write import write_task

TESTS = """\
import unittest

from solution import one


class TestOne(unittest.TestCase):
    def test_value(self):
        self.assertEqual(one(), 1)

    def test_type(self):
        self.assertIsInstance(one(), int)
"""
GRADING = {"fail_to_pass": ["test_one.TestOne.test_value"], "pass_to_pass": ["test_one.TestOne.test_type"]}


def make(path: Path, metadata: dict = GRADING, tests: str = TESTS, **sections) -> Path:
    write_task(
        path,
        instruction="The function `one` has a bug.\n",
        config=TaskConfig(task=TaskSection(name="org/one"), metadata=metadata, **sections),
        repo={"solution.py": "def one():\n    return 2\n"},
        tests={"test_one.py": tests},
        solution={"solution.py": "def one():\n    return 1\n"},
    )
    return path


def append(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


def test_a_written_task_is_read_back(tmp_path):
    task = Task.load(make(tmp_path / "one", agent=AgentSection(timeout_sec=7)))
    assert task.task_id == "one"
    assert task.path == tmp_path / "one"
    assert task.instruction == "The function `one` has a bug.\n"
    assert task.grading == Grading(**GRADING)
    assert (task.agent_timeout, task.verifier_timeout) == (7, 600)
    assert (task.snapshot / "solution.py").read_text() == "def one():\n    return 2\n"
    assert (task.tests / "test_one.py").read_text() == TESTS
    assert task.solution is not None
    assert (task.solution / "solution.py").read_text() == "def one():\n    return 1\n"


def test_an_agent_without_a_limit_gets_the_default_one(tmp_path):
    assert Task.load(make(tmp_path / "one")).agent_timeout == DEFAULT_AGENT_TIMEOUT


def test_toml_text_keeps_every_value(tmp_path):
    odd = {"quote": 'a "b" \\ c', "lines": "x\ny\t\x7f", "accents": "né 🙂", "a key.with dots": 1, "b": True, "f": 1.5}
    config = TaskConfig(
        task=TaskSection(name="org/one", authors=[{"name": "A", "email": "a@b"}], keywords=["x", "y"]),
        metadata=GRADING | odd | {"table": {"deeper": {"n": -1}}, "last": 3},
        artifacts=["out", {"source": "a", "destination": "b"}],
    )
    assert TaskConfig.model_validate(tomllib.loads(config.to_toml())) == config


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        ("instruction.md", "no instruction.md"),
        ("task.toml", "no task.toml"),
        ("tests/test_one.py", "no hidden tests"),
        ("tests", "no hidden tests"),
        ("environment/repo", "no repository snapshot"),
    ],
)
def test_a_missing_part_is_named(tmp_path, remove, message):
    path = make(tmp_path / "one")
    shutil.rmtree(path / remove) if (path / remove).is_dir() else (path / remove).unlink()
    with pytest.raises(TaskError, match=message):
        Task.load(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"pass_to_pass": GRADING["pass_to_pass"]}, "fail_to_pass is empty"),
        ({"fail_to_pass": []}, "fail_to_pass is empty"),
        ({"fail_to_pass": ["test_one.test_value"]}, "not of the form"),
        ({"fail_to_pass": ["../x.TestOne.test_value"]}, "not of the form"),
        ({"fail_to_pass": ["test_two.TestOne.test_value"]}, "test_two.py, which tests/ does not have"),
        ({"fail_to_pass": ["test_one.TestTwo.test_value"]}, "no class TestTwo"),
        ({"fail_to_pass": ["test_one.TestOne.test_values"]}, "TestOne has no test_values"),
        ({"fail_to_pass": ["test_one.TestOne.test_value"] * 2}, "more than once"),
        ({"fail_to_pass": GRADING["fail_to_pass"], "pass_to_pass": GRADING["fail_to_pass"]}, "more than once"),
        (GRADING | {"report": "guess"}, "report 'guess' is unknown; choose one of: unittest, pytest"),
        (GRADING | {"test_command": ["make"]}, "test_command is not supported with report 'unittest'"),
        (GRADING | {"report": "junit"}, "test_command is missing"),
        (GRADING | {"report": "junit", "test_command": ["make"]}, "write {report} for its path"),
        (GRADING | {"report": "log", "test_command": ["make"]}, "log_parser is missing"),
        (GRADING | {"report": "script"}, "takes its reward from tests/test.sh"),
        (GRADING | {"report": "pytest"}, "not of the form path/test_file.py"),
        ({"report": "pytest", "fail_to_pass": ["test_two.py::test_a"]}, "test_two.py, which tests/ does not have"),
        ({"report": "pytest", "fail_to_pass": ["test_one.py::TestTwo::test_a"]}, "no class TestTwo"),
        ({"report": "pytest", "fail_to_pass": ["test_one.py::TestOne::test_a[x]"]}, "TestOne has no test_a"),
        ({"report": "pytest", "fail_to_pass": ["../test_one.py::test_a"]}, "not of the form path/test_file.py"),
        (GRADING | {"test_command": []}, "test_command is an empty list"),
        (GRADING | {"visible_tests": ["test_seen.py"]}, "visible test test_seen.py"),
    ],
)
def test_grading_facts_that_cannot_work_are_refused(tmp_path, metadata, message):
    with pytest.raises(TaskError, match=message):
        Task.load(make(tmp_path / "one", metadata))


@pytest.mark.parametrize(
    "metadata",
    [
        {
            "report": "pytest",
            "fail_to_pass": ["test_one.py::TestOne::test_value", "test_one.py::TestOne::test_type[é a-b]"],
        },
        {"report": "junit", "test_command": ["make", "report={report}"], "fail_to_pass": ["any::name [at] all"]},
        {"report": "log", "log_parser": "django", "test_command": ["make"], "fail_to_pass": ["test_a (x.Y)"]},
        {"report": "script"},
    ],
)
def test_each_kind_has_its_own_facts(tmp_path, metadata):
    assert Task.load(make(tmp_path / "one", metadata)).grading == Grading(**metadata)


def test_a_task_that_names_no_tests_is_graded_by_its_script_and_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        task = Task.load(make(tmp_path / "one", {"difficulty": "easy"}))
    assert task.grading.report == "script"
    assert "less protected" in caplog.text
    (tmp_path / "one" / "tests" / "test.sh").unlink()
    with pytest.raises(TaskError, match="fail_to_pass is empty"):
        Task.load(tmp_path / "one")


def test_inherited_tests_are_allowed(tmp_path):
    inherited = TESTS.replace("unittest.TestCase", "Shared") + "\nclass Shared(unittest.TestCase): pass\n"
    task = Task.load(make(tmp_path / "one", {"fail_to_pass": ["test_one.TestOne.test_elsewhere"]}, inherited))
    assert task.grading.fail_to_pass == ["test_one.TestOne.test_elsewhere"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[[", "not valid TOML"),
        ("\n[[steps]]\nname = 'a'\n", "single-step"),
        ("\n[agent]\ntimeout_sec = 0\n", "agent.timeout_sec"),
        ("\n[environment]\nnetwork_mode = 'some'\n", "environment.network_mode"),
    ],
)
def test_a_broken_task_toml_is_refused(tmp_path, text, message):
    path = make(tmp_path / "one")
    append(path / "task.toml", text)
    with pytest.raises(TaskError, match=message):
        Task.load(path)


def test_other_unusable_directories_are_refused(tmp_path):
    with pytest.raises(TaskError, match="no such task directory"):
        Task.load(tmp_path / "none")
    (make(tmp_path / "blank") / "instruction.md").write_text(" \n")
    with pytest.raises(TaskError, match="is empty"):
        Task.load(tmp_path / "blank")
    (make(tmp_path / "bytes") / "instruction.md").write_bytes(b"\xff\xfe")
    with pytest.raises(TaskError, match="not UTF-8"):
        Task.load(tmp_path / "bytes")
    with pytest.raises(TaskError, match="not valid Python"):
        Task.load(make(tmp_path / "syntax", tests="class TestOne(:\n"))


def test_unknown_keys_are_named(tmp_path, caplog):
    path = make(tmp_path / "one")
    append(path / "task.toml", "\n[verifier]\ntimeout_secs = 5\n\n[extras]\na = 1\n")
    with caplog.at_level(logging.WARNING):
        task = Task.load(path)
    assert task.verifier_timeout == 600
    assert "verifier.timeout_secs" in caplog.text
    assert "extras" in caplog.text
    assert "fail_to_pass" not in caplog.text


def test_editable_files_are_the_regular_text_files_of_the_snapshot(tmp_path):
    path = make(tmp_path / "one", GRADING | {"visible_tests": ["seen/test_seen.py"]})
    repo = path / "environment" / "repo"
    for name in ("seen/test_seen.py", "pkg/a.py", "pkg/__pycache__/a.pyc", ".git/config", "pkg/notes.txt"):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text("x = 1\n")
    (repo / "image.bin").write_bytes(b"\0\1")
    (tmp_path / "outside.py").write_text("secret = 1\n")
    (repo / "link.py").symlink_to(tmp_path / "outside.py")
    assert Task.load(path).editable_files() == ["pkg/a.py", "pkg/notes.txt", "solution.py"]


def test_harbors_scripts_tell_bug_from_solution(tmp_path):
    """`test.sh` and `solve.sh` with their absolute folders moved below the test's own."""
    path = make(tmp_path / "one")
    workspace, logs = tmp_path / "workspace", tmp_path / "logs"
    shutil.copytree(path / "environment" / "repo", workspace)
    script = (path / "tests" / "test.sh").read_text()
    for absolute, moved in (("/workspace", workspace), ("/logs", logs), (" /tests", f" {path}/tests")):
        script = script.replace(absolute, str(moved))

    def reward() -> str:
        subprocess.run(["sh", "-c", script], check=True)
        return (logs / "verifier" / "reward.txt").read_text().strip()

    assert reward() == "0"
    subprocess.run([path / "solution" / "solve.sh", workspace], check=True)
    assert reward() == "1"
