"""A small library with a bug, its fix and its tests, as a clone and as the patches that data sets have."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.pool.index import TaskPointer
from harness.pool.schema import Grading, TaskConfig, TaskSection
from harness.pool.write import write_task

ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z",
}

BUGGY = "def double(x):\n    return x + x + 1\n\n\ndef half(x):\n    return x / 2\n"
FIXED = BUGGY.replace("x + x + 1", "x + x")
OLD_TEST = "from mathy.core import double, half\n\n\ndef test_half():\n    assert half(4) == 2\n"
NEW_TEST = OLD_TEST + (
    "\n\nclass TestDouble:\n    def test_two(self):\n        assert double(2) == 4\n\n"
    "    def test_type(self):\n        assert isinstance(double(1), int)\n"
)
PLAIN_FILES = {
    "mathy/__init__.py": "",
    "mathy/old.py": "x = 1\n",
    "tests/__init__.py": "",
    "tests/test_core.py": OLD_TEST,
    "tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef four():\n    return 4\n",
    "setup.cfg": "[metadata]\nname = mathy\n\n[tool:pytest]\nmarkers =\n    slow\n",
    ".gitattributes": "tests export-ignore\n",
}


@dataclass(frozen=True)
class Library:
    """`repos` holds the clone acme__mathy; `base` has the bug, `fixed` is the commit after it."""

    repos: Path
    base: str
    fixed: str
    patch: str
    test_patch: str
    bug_patch: str


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True, env=ENV).stdout


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    repos = tmp_path_factory.mktemp("repos")
    clone = repos / "acme__mathy"
    clone.mkdir()
    git(clone, "init", "-q", "-b", "main")
    base = commit(clone, {**PLAIN_FILES, "mathy/core.py": BUGGY})
    commit(clone, {"mathy/core.py": FIXED, "mathy/old.py": None})
    patch = git(clone, "diff", base, "HEAD")
    fixed = commit(clone, {"tests/test_core.py": NEW_TEST, "tests/data/né w.txt": "data\n"})
    test_patch = git(clone, "diff", "HEAD~1", "HEAD")
    # the bug alone, as SWE-smith writes it: against the fixed code, that has the tests already
    commit(clone, {"mathy/core.py": BUGGY})
    bug_patch = git(clone, "diff", "HEAD~1", "HEAD")
    return Library(repos, base, fixed, patch, test_patch, bug_patch)


def commit(clone: Path, files: dict[str, str | None]) -> str:
    for name, text in files.items():
        file = clone / name
        if text is None:
            file.unlink()
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "change")
    return git(clone, "rev-parse", "HEAD").strip()


@pytest.fixture
def row(library: Library) -> dict:
    """A row with the columns of SWE-bench, all of which the public set has."""
    return {
        "repo": "acme/mathy",
        "instance_id": "acme__mathy-1",
        "base_commit": library.base,
        "patch": library.patch,
        "test_patch": library.test_patch,
        "problem_statement": "double(2) gives 5.",
        "hints_text": "",
        "created_at": "2020-01-02T00:00:00Z",
        "version": "1.0",
        "FAIL_TO_PASS": '["tests/test_core.py::TestDouble::test_two"]',
        "PASS_TO_PASS": '["tests/test_core.py::test_half", "tests/test_core.py::TestDouble::test_type"]',
        "environment_setup_commit": library.base,
    }


@pytest.fixture
def small_pool(tmp_path: Path) -> list[TaskPointer]:
    """Three small tasks with unittest's ids, by their ids in order."""
    rows = []
    for name in ("one", "three", "two"):
        path = tmp_path / "small" / name
        test = "import unittest\n\n\nclass TestIt(unittest.TestCase):\n    def test_it(self):\n        import it\n\n"
        write_task(
            path,
            instruction=f"Mend {name}.\n",
            config=TaskConfig(
                task=TaskSection(name=f"org/{name}"),
                metadata={"difficulty": "easy"}
                | Grading(fail_to_pass=["test_it.TestIt.test_it"]).model_dump(exclude_none=True),
            ),
            repo={"it.py": f"raise ValueError('{name}')\n"},
            tests={"test_it.py": test},
            solution={"it.py": "x = 1\n"},
        )
        rows.append(TaskPointer(name, path, "kata", {"difficulty": "easy", "function": name, "n": len(rows)}))
    return rows
