"""A drafted task as a folder in Harbor's format, in two steps: what its row says, then what its snapshot adds.

A data set gives patches; whole test files and solved files exist only once the repository is at hand. Until then a task
is *pending*: its snapshot lies in its image, its patches in `solution/`, of which no sandbox ever gets anything.
`fill_task` puts the snapshot in and finishes the task, as the import itself does where it has the repository.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from harness.pool.importers.draft import Draft
from harness.pool.importers.grading import grading_facts
from harness.pool.importers.patches import apply_patch, parse_patch, safe_path
from harness.pool.importers.scripts import check_script, dockerfile, solve_script
from harness.pool.importers.values import ImportProblem
from harness.pool.kinds import pytest_problems, split_pytest_id
from harness.pool.schema import (
    AgentSection,
    EnvironmentSection,
    Grading,
    TaskConfig,
    TaskSection,
    VerifierSection,
)
from harness.pool.task import Task, TaskEnvironment, TaskError, TaskPending, environment_of, read_task_config

HIDDEN_PLACES = "hidden_places"
"""Key in `[metadata]` of the places in the image that tell the hidden tests: no trial may start from it as it is."""

PATCH, BUG, TEST_PATCH = "solution.patch", "bug.patch", "test.patch"
ORIGIN = "origin"
"""Key in `[metadata]` of what finishing a task needs to know: repo, base_commit, dataset, row."""

_SETTINGS = (
    ("pytest.ini", b"["),
    ("pyproject.toml", b"[tool.pytest"),
    ("tox.ini", b"[pytest]"),
    ("setup.cfg", b"[tool:pytest]"),
)

PutSnapshot = Callable[[Path], Iterable[str]]
"""Writes a repository's files into an empty folder; returns notes on what it left out."""


def write_pending(
    draft: Draft, folder: Path, organisation: str, agent_timeout: float, verifier_timeout: float
) -> list[str]:
    """Write what the row alone gives at `folder`; returns notes.

    Raises:
        ImportProblem: it cannot be graded.
    """
    facts, notes = grading_facts(draft)
    origin = {"repo": draft.repo, "base_commit": draft.base_commit, "dataset": organisation}
    config = TaskConfig(
        task=TaskSection(name=f"{organisation}/{draft.instance_id.replace('+', '-')}", keywords=["repair"]),
        metadata={**facts, **draft.extra, **_places(draft), ORIGIN: origin},
        agent=AgentSection(timeout_sec=agent_timeout, network_mode="no-network"),
        verifier=VerifierSection(timeout_sec=verifier_timeout, network_mode="no-network"),
        environment=EnvironmentSection(network_mode="no-network", docker_image=draft.image, workdir=draft.workdir),
    )
    try:
        grading = Grading.model_validate(facts)
    except ValueError as error:
        raise ImportProblem(f"its tests cannot be graded: {_first_line(error)}") from error
    name = BUG if draft.patch_is_bug else PATCH
    texts = {
        "instruction.md": draft.instruction.strip() + "\n",
        "task.toml": config.to_toml(),
        "environment/Dockerfile": dockerfile(draft.image, draft.workdir, False, BUG if draft.patch_is_bug else None),
        "tests/test.sh": check_script(grading, draft.workdir, draft.test_patch or None),
        "solution/solve.sh": solve_script(draft.workdir, name if draft.patch else None, draft.patch_is_bug),
    }
    if draft.patch:
        texts[f"solution/{name}"] = draft.patch
        if draft.patch_is_bug:
            texts[f"environment/{BUG}"] = draft.patch
    if draft.test_patch:
        texts[f"solution/{TEST_PATCH}"] = draft.test_patch
    texts |= {f"tests/{safe_path(path)}": text for path, text in draft.hidden_files.items()}
    texts |= {
        f"solution/files/{safe_path(path)}": text for path, text in draft.solution_files.items() if text is not None
    }
    deleted = [path for path, text in draft.solution_files.items() if text is None]
    if deleted:
        texts["solution/deleted.txt"] = "".join(f"{path}\n" for path in deleted)
    for path, text in texts.items():
        _write(folder / path, text.encode("utf-8", "surrogateescape"))
    return notes


def finish_task(folder: Path) -> list[str]:
    """Make a task whole whose snapshot has been put into `environment/repo`; returns notes. Works once.

    Raises:
        ImportProblem: the patches do not fit the snapshot, or its tests are not there.
    """
    config = read_task_config(folder)
    repo, solution, tests = folder / "environment" / "repo", folder / "solution", folder / "tests"
    _refuse_links_out(repo)
    for file in tests.rglob("*"):  # of a row that has them whole; an image may have put them into the repository
        if file.is_file() and file.name != "test.sh":
            _write(repo / file.relative_to(tests), None)
    facts = {name: config.metadata[name] for name in Grading.model_fields if name in config.metadata}
    notes: list[str] = []
    hidden: list[str] = []
    bug, patch, test_patch = (_text(solution / name) for name in (BUG, PATCH, TEST_PATCH))
    if bug:
        changed = apply_patch(bug, _reader(repo), "patch")
        _lay(solution, {path: _reader(repo)(path) for path in changed})
        for path, data in changed.items():
            _write(repo / path, data)
        _write(folder / "environment" / BUG, None)
    elif patch:
        _lay(solution, apply_patch(patch, _reader(repo), "patch"))
    if test_patch:
        for path, data in apply_patch(test_patch, _reader(repo), "test_patch").items():
            _write(tests / path, data)
    if facts.get("report") == "pytest":
        _add_pytest_files(facts, repo, tests)
        _keep_what_is_there(facts, tests, notes)
        if bug:  # the failing tests were written for the clean repository: seeing them would give the bug away
            hidden = sorted({split_pytest_id(test_id)[0] for test_id in facts["fail_to_pass"]})
            for path in hidden:
                _write(repo / path, None)
    config = config.model_copy(update={"metadata": config.metadata | facts})
    _write(folder / "task.toml", config.to_toml().encode())
    grading = Grading.model_validate(facts)
    workdir = config.environment.workdir or "/workspace"
    image = dockerfile(config.environment.docker_image, workdir, True, gone=[*hidden, *_gone_from(repo, bug)])
    _write(folder / "environment" / "Dockerfile", image.encode())
    _write(tests / "test.sh", check_script(grading, workdir, None).encode())
    deleted = (_text(solution / "deleted.txt") or "").splitlines()
    _write(solution / "solve.sh", solve_script(workdir, None, deleted=deleted).encode())
    try:
        Task.load(folder)
    except TaskError as error:
        raise ImportProblem(str(error).replace(f"{folder}", "task")) from error
    return notes


def fill_task(folder: Path, put_snapshot: PutSnapshot, environment: TaskEnvironment | None = None) -> list[str]:
    """Put the snapshot into a pending task and finish it, complete or not at all; returns notes.

    `environment` replaces what the task says of its image.

    Raises:
        ImportProblem: see `finish_task`, or the task is not pending.
    """
    try:
        Task.load(folder)
    except TaskPending:
        pass
    else:
        raise ImportProblem(f"{folder} has its snapshot already")
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        shutil.copytree(folder, partial, dirs_exist_ok=True, symlinks=True)
        repo = partial / "environment" / "repo"
        repo.mkdir(parents=True)
        notes = [*put_snapshot(repo)]
        config = read_task_config(partial)
        if environment is not None and environment != environment_of(config):
            _write(partial / "task.toml", _moved_to(config, environment).to_toml().encode())
        if ORIGIN in config.metadata:
            notes += finish_task(partial)
        else:
            Task.load(partial)  # Harbor's own: nothing but the snapshot lacks
        before = partial.with_suffix(".before")
        os.rename(folder, before)
        os.rename(partial, folder)
        shutil.rmtree(before)
        return notes
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _places(draft: Draft) -> dict[str, Any]:
    """What `[metadata]` says of the image."""
    python = {"python": draft.python} if draft.python else {}
    return python | ({HIDDEN_PLACES: list(draft.hidden_places)} if draft.hidden_places else {})


def _moved_to(config: TaskConfig, environment: TaskEnvironment) -> TaskConfig:
    section = config.environment.model_copy(update={"docker_image": environment.image, "workdir": environment.workdir})
    python = {} if environment.python is None else {"python": environment.python}
    before = config.environment.docker_image
    adapted = {} if before == environment.image else {"adapted_from": before}
    return config.model_copy(update={"environment": section, "metadata": config.metadata | python | adapted})


def _add_pytest_files(facts: dict[str, Any], repo: Path, tests: Path) -> None:
    """Of the repository's tests, those that count, with their conftest.py, __init__.py and settings."""
    files = {split_pytest_id(test_id)[0] for test_id in (*facts["fail_to_pass"], *facts.get("pass_to_pass", []))}
    folders = {parent for file in files for parent in PurePosixPath(file).parents}
    beside = {str(parent / name) for parent in folders for name in ("conftest.py", "__init__.py")}
    settings = next((n for n, mark in _SETTINGS if mark in (_reader(repo)(n) or b"")), None)
    for path in sorted(files | beside | ({settings} if settings else set())):
        data = _reader(repo)(path)
        inside = path.endswith("__init__.py") and not (tests / path).parent.is_dir()
        if data is not None and not inside and not (tests / path).exists():
            _write(tests / path, data)


def _keep_what_is_there(facts: dict[str, Any], tests: Path, notes: list[str]) -> None:
    """Leave out ids that no run could report: files and names that the tests do not have.

    Raises:
        ImportProblem: no failing test is left.
    """
    for name in ("fail_to_pass", "pass_to_pass"):
        ids = facts.get(name, [])
        missing = pytest_problems(ids, tests)
        facts[name] = [test_id for test_id in ids if test_id not in missing]
        if missing:
            example = next(iter(missing.values()))
            notes.append(f"{len(missing)} of {len(ids)} {name} left out: {example}")
            if not facts[name] and name == "fail_to_pass":
                raise ImportProblem(f"none of the failing tests is there: {example}")


def _lay(solution: Path, files: dict[str, bytes | None]) -> None:
    """Write the solved files, and the names of those that the solution deletes."""
    for path, data in files.items():
        if data is not None:
            _write(solution / "files" / path, data)
    (solution / "files").mkdir(exist_ok=True)
    deleted = [path for path, data in files.items() if data is None]
    if deleted:
        _write(solution / "deleted.txt", "".join(f"{path}\n" for path in deleted).encode())


def _gone_from(repo: Path, bug: str | None) -> list[str]:
    """Files that the bug's patch deletes, which an image of the clean repository still has."""
    if not bug:
        return []
    return [change.old for change in parse_patch(bug) if change.old and not (repo / change.old).exists()]


def _reader(root: Path) -> Callable[[str], bytes | None]:
    def read(path: str) -> bytes | None:
        file = root / path
        inside = file.resolve().is_relative_to(root.resolve())
        return file.read_bytes() if inside and file.is_file() and not file.is_symlink() else None

    return read


def _refuse_links_out(repo: Path) -> None:
    top = repo.resolve()
    for folder, folders, files in os.walk(repo):
        for name in (*folders, *files):
            entry = Path(folder, name)
            if entry.is_symlink() and not entry.resolve().is_relative_to(top):
                raise ImportProblem(f"{entry.relative_to(repo)} links out of the repository; put a file in its place")


def _write(file: Path, data: bytes | None) -> None:
    """Write a file, remove it for None; scripts can be run.

    What was there is replaced and not changed: other tasks may share it.
    """
    mode = file.stat().st_mode if file.is_file() and not file.is_symlink() else None
    file.unlink(missing_ok=True)
    if data is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    if mode is not None:
        file.chmod(mode)
    if file.name in ("test.sh", "solve.sh") and file.parent.name in ("tests", "solution"):
        file.chmod(0o755)


def _text(file: Path) -> str | None:
    # no newline is translated: patches of files with other line ends must stay as they are
    return file.read_bytes().decode("utf-8", "surrogateescape") if file.is_file() else None


def _first_line(error: ValueError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("Value error")), lines[0] if lines else "?")
