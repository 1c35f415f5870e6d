"""A task as a data set's row describes it, before anything is written."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.pool.importers.patches import parse_patch, safe_path
from harness.pool.importers.values import ImportProblem, storable
from harness.sandbox.base import WORKSPACE, check_mount

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
_REPO = re.compile(r"[A-Za-z0-9_][\w.+-]*(/[\w.+-]+)?")
_COMMIT = re.compile(r"[0-9a-fA-F]{7,40}([~^][0-9]*)?")
_IMAGE = re.compile(
    r"([A-Za-z0-9][\w.-]*(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_FOLDER = re.compile(r"(/[\w.+-]+)+")


@dataclass(frozen=True)
class Draft:
    """One row, understood. Patches are unified diffs against `base_commit` of `repo`.

    `patch` is the solution, or with `patch_is_bug` what breaks the clean repository, so that its reverse is the
    solution. `solution_files` and `hidden_files` give whole files instead, None for one that is deleted.
    `hidden_places` are folders of the image, outside `workdir`, that tell the hidden tests.
    `expected_map` gives the status that each test must end with, in place of the two lists.
    """

    instance_id: str
    instruction: str
    repo: str
    base_commit: str = ""
    image: str | None = None
    workdir: str = "/testbed"
    python: str | None = None
    hidden_places: tuple[str, ...] = ()
    patch: str = ""
    patch_is_bug: bool = False
    test_patch: str = ""
    solution_files: Mapping[str, str | None] = field(default_factory=dict)
    hidden_files: Mapping[str, str] = field(default_factory=dict)
    fail_to_pass: list[str] = field(default_factory=list)
    pass_to_pass: list[str] = field(default_factory=list)
    expected_map: Mapping[str, str] = field(default_factory=dict)
    test_command: list[str] | None = None
    log_parser: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no task can be made of.

        Raises:
            ImportProblem: names the field, its value and what is wrong with it.
        """
        _must_match(_ID, self.instance_id, "instance_id", "is no safe name of a folder")
        _must_match(_REPO, self.repo, "repo", "is no owner/name")
        if self.base_commit:
            _must_match(_COMMIT, self.base_commit, "base_commit", "is no commit")
        if self.image is not None:
            _must_match(_IMAGE, self.image, "image", "is no name of an image")
        _must_match(_FOLDER, self.workdir, "workdir", "is no absolute folder")
        if self.workdir != WORKSPACE:
            try:
                check_mount(self.workdir)
            except ValueError as error:
                raise ImportProblem(f"workdir {self.workdir} is a part of the system, not a repository") from error
        if not self.instruction.strip():
            raise ImportProblem("no problem_statement: there is nothing to ask the agent")
        if not self.patch.strip() and not self.solution_files:
            raise ImportProblem("no patch: a task needs its solution, to prove that it can be solved")
        for name, text in (("patch", self.patch), ("test_patch", self.test_patch)):
            if text.strip():
                parse_patch(text, name)
        for path, content in (*self.solution_files.items(), *self.hidden_files.items()):
            storable(safe_path(path) + (content or ""), "a file's path or content")


def _must_match(pattern: re.Pattern[str], value: str, name: str, complaint: str) -> None:
    if not pattern.fullmatch(value) or ".." in value.split("/"):
        raise ImportProblem(f"{name} {value[:120]!r} {complaint}")
