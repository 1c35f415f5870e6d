"""A task: an instruction, a repository snapshot and a hidden test suite, read from a directory in Harbor's format.

```
instruction.md            what the agent is asked
task.toml                 limits, and in [metadata] the tests that must pass
environment/repo/         the snapshot; all that the agent gets
environment/Dockerfile    the same snapshot as an image, for Harbor
tests/                    the hidden tests (test.sh is Harbor's entry, run by the grading kind `script` only)
solution/files/           the solved files, copied over the snapshot by solution/solve.sh
solution/deleted.txt      names of files that the solution deletes, if there are any
```

A task whose `[environment]` names a `docker_image` needs what is installed there; the repository's place in it is
`workdir`. Where `environment/repo` is missing, the snapshot is still in that image and the task is pending.
"""

import logging
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from harness.pool.kinds import REPORT_KINDS
from harness.pool.schema import Grading, TaskConfig, unknown_keys

__all__ = [
    "DEFAULT_AGENT_TIMEOUT",
    "Grading",
    "Task",
    "TaskConfig",
    "TaskEnvironment",
    "TaskError",
    "TaskPending",
    "environment_of",
    "read_task_config",
]

log = logging.getLogger(__name__)

DEFAULT_AGENT_TIMEOUT = 1800.0
"""Seconds for an agent whose task sets no limit: a trial without an end would hold up its whole step."""

_NEVER_EDITED = {".git", "__pycache__"}


class TaskError(ValueError):
    """A directory that is no usable task; the message names the file and the mend."""


class TaskPending(TaskError):
    """All is there but the snapshot, which lies in the task's image; `testgrad pool fill` copies it out."""


@dataclass(frozen=True)
class TaskEnvironment:
    """What a task's code needs around it; None where any sandbox will do.

    `image` is a container image with the dependencies, `workdir` the absolute folder in which the repository is
    installed there, and `python` the interpreter that has the dependencies.
    """

    image: str | None = None
    workdir: str | None = None
    python: str | None = None


@dataclass(frozen=True)
class Task:
    """One task, checked when read. Times are seconds."""

    path: Path
    task_id: str
    instruction: str
    snapshot: Path
    tests: Path
    grading: Grading
    agent_timeout: float
    verifier_timeout: float
    config: TaskConfig

    @classmethod
    def load(cls, path: Path | str) -> "Task":
        """Read and check the task at `path`; its directory's name is its id.

        Raises:
            TaskError: something a trial or its grading needs is missing or contradicts the rest.
            TaskPending: nothing but the snapshot is missing, and an image has it.
        """
        path = Path(path).resolve()
        config = read_task_config(path)
        instruction = _read_text(path / "instruction.md", "write there what the agent is asked to do")
        if not instruction.strip():
            raise TaskError(f"{path}/instruction.md is empty; write there what the agent is asked to do")
        grading = _read_grading(path / "task.toml", config)
        snapshot, tests = path / "environment" / "repo", path / "tests"
        if not snapshot.is_dir() and config.environment.docker_image:
            raise TaskPending(
                f"{path}: the snapshot is still in image {config.environment.docker_image}; copy it into "
                "environment/repo/ with `testgrad pool fill`"
            )
        if not snapshot.is_dir():
            raise TaskError(f"{path}: no repository snapshot; put the files that the agent gets into environment/repo/")
        try:
            REPORT_KINDS[grading.report].files(grading, tests)
        except ValueError as error:
            raise TaskError(f"{path}: {error}") from error
        for name in grading.visible_tests:
            if not (snapshot / name).is_file():
                raise TaskError(f"{path}: visible test {name} is not in environment/repo/; add it or leave it out")
        return cls(
            path=path,
            task_id=path.name,
            instruction=instruction,
            snapshot=snapshot,
            tests=tests,
            grading=grading,
            agent_timeout=config.agent.timeout_sec or DEFAULT_AGENT_TIMEOUT,
            verifier_timeout=config.verifier.timeout_sec,
            config=config,
        )

    @property
    def solution(self) -> Path | None:
        """Folder of the solved files, to be laid over the snapshot; None when the task ships none in that form."""
        files = self.path / "solution" / "files"
        return files if files.is_dir() else None

    @property
    def environment(self) -> TaskEnvironment:
        """The image and the places in it that the task names."""
        return environment_of(self.config)

    def solution_changes(self) -> dict[str, bytes | None] | None:
        """What the solution changes, by path: the content afterwards, None for a deleted file. None: ships none."""
        if self.solution is None:
            return None
        files = (file for file in self.solution.rglob("*") if file.is_file() and not file.is_symlink())
        changes: dict[str, bytes | None] = {
            file.relative_to(self.solution).as_posix(): file.read_bytes() for file in sorted(files)
        }
        deleted = self.path / "solution" / "deleted.txt"
        return changes | dict.fromkeys(deleted.read_text(encoding="utf-8").splitlines() if deleted.is_file() else ())

    def editable_files(self) -> list[str]:
        """Sorted paths, relative to the snapshot, of the text files that an agent may change."""
        return sorted(name for name in _regular_files(self.snapshot) if name not in self.grading.visible_tests)


def environment_of(config: TaskConfig) -> TaskEnvironment:
    """The image and the places in it that a `task.toml` names."""
    section, python = config.environment, config.metadata.get("python")
    return TaskEnvironment(section.docker_image, section.workdir, python if isinstance(python, str) else None)


def _read_text(file: Path, mend: str) -> str:
    if not file.is_file():
        raise TaskError(f"{file.parent}: no {file.name}; {mend}")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{file} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from error


def read_task_config(path: Path) -> TaskConfig:
    """The `task.toml` of the task directory `path`, checked by itself.

    Raises:
        TaskError: there is no such directory, or its task.toml is unusable.
    """
    if not path.is_dir():
        raise TaskError(f"{path}: no such task directory; check the path, or build the pool again")
    return _read_config(path / "task.toml")


def _read_config(file: Path) -> TaskConfig:
    text = _read_text(file, "write one with [task] name and, under [metadata], fail_to_pass")
    try:
        config = TaskConfig.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{file} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise TaskError(f"{file}: {_first_problem(error)}") from error
    if config.steps:
        raise TaskError(f"{file}: steps has {len(config.steps)} entries; testgrad runs single-step tasks, split it")
    if unknown := unknown_keys(config):
        log.warning("%s: ignored unknown keys %s; check their spelling, or move them to [metadata]", file, unknown)
    return config


def _read_grading(file: Path, config: TaskConfig) -> Grading:
    facts = {name: config.metadata[name] for name in Grading.model_fields if name in config.metadata}
    if facts.keys() <= {"visible_tests"} and (file.parent / "tests" / "test.sh").is_file():
        log.warning("%s: [metadata] names no tests; graded by tests/test.sh, which is less protected", file)
        facts["report"] = "script"
    try:
        return Grading.model_validate(facts)
    except ValidationError as error:
        raise TaskError(f"{file}: [metadata] {_first_problem(error)}") from error


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else problem["msg"].removeprefix("Value error, ")


def _regular_files(root: Path) -> Iterator[str]:
    """Relative POSIX paths of the text files below `root`; links are not followed, since they may lead outside."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _NEVER_EDITED]
        for name in names:
            file = Path(folder, name)
            if file.is_symlink() or not file.is_file():
                continue
            with file.open("rb") as stream:
                if b"\0" in stream.read(8192):
                    continue
            yield file.relative_to(root).as_posix()
