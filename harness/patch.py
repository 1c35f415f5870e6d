"""What a trial changed: the difference between its workspace and the snapshot that the host kept.

It is found by reading files, not by asking the workspace's git. What could turn the grading instead of the code (test
files, runner configuration, start-up hooks, modules in the place of trusted ones) is left out, and each path left out
is recorded with its reason. A patch can be stored, read back and graded again.
"""

import asyncio
import base64
import binascii
import difflib
import json
import re
import sys
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Self

from harness.sandbox import Sandbox, Tree, WorkspaceError
from harness.sandbox.tree import PRUNED, relative_parts

INTERPRETER_HOOKS = frozenset({"sitecustomize.py", "usercustomize.py", "pyvenv.cfg"})
NO_SOURCES = PRUNED | {".hg", ".svn", ".bzr", ".jj", "CVS", ".tox", ".nox", ".venv"}
"""Names of folders and files, at any depth, that belong to tools and not to the project."""

_TEST_SETTINGS = re.compile(
    r"conftest\.py|\.?pytest\.(ini|toml)|tox\.(ini|toml)|setup\.cfg|noxfile\.py|\.coveragerc"
    r"|unittest\.cfg|nose2?\.cfg|\.noserc|\.s?testr\.conf"
    r"|(jest|vitest|playwright)\.config\.\w+|karma\.conf\.\w+|\.mocharc\.\w+|phpunit\.xml.*|\.rspec"
)
_HOOK_SUFFIXES = (".pth", ".pyc", ".pyo", "._pth", ".egg-link")
_METADATA_SUFFIXES = (".egg-info", ".dist-info", ".egg")
_TEST_FOLDERS = frozenset({"tests", "__tests__"})
_TEST_FILE = re.compile(r"test_.*\.py|.*_test\.(py|go)|tests\.py|.*\.(test|spec)\.[cm]?[jt]sx?")
_RUNNER_MODULES = frozenset(
    {"_pytest", "exceptiongroup", "iniconfig", "packaging", "pluggy", "py", "pygments", "pytest", "tomli"}
)
_MODULE_SUFFIXES = (".py", ".so", ".pyd")
_PATH_FOLDERS = frozenset({"", "src", "lib"})
"""Folders of a repository that often stand on sys.path."""

_TEXT_LIMIT = 256 << 10
_DIFF_LINES = 5_000


class PatchError(ValueError):
    """A stored patch that cannot be read."""


@dataclass(frozen=True)
class Patch:
    """Changes to a snapshot. `files` maps relative paths to the new content, None for a deleted file.

    `rejected` are changes that were left out, as (path, reason). `text` shows the changes to people; it is cut short
    when long and names binary files only, so it is never applied.
    """

    files: Mapping[str, bytes | None] = field(default_factory=dict)
    rejected: tuple[tuple[str, str], ...] = ()
    text: str = ""

    @property
    def empty(self) -> bool:
        return not self.files

    def to_json(self) -> str:
        """All of the patch, as one JSON object."""
        files = {
            path: None if data is None else base64.b64encode(data).decode("ascii")
            for path, data in sorted(self.files.items())
        }
        return json.dumps({"files": files, "rejected": self.rejected, "text": self.text})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The patch that `to_json` wrote.

        Raises:
            PatchError: the text is no stored patch.
        """
        try:
            stored = json.loads(text)
            files = {
                str(path): None if data is None else base64.b64decode(data, validate=True)
                for path, data in stored["files"].items()
            }
            rejected = tuple((str(path), str(reason)) for path, reason in stored["rejected"])
            return cls(files, rejected, str(stored["text"]))
        except (KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
            raise PatchError(f"no stored patch ({error}); it must be what Patch.to_json wrote") from error


async def take_patch(pristine: Path, sandbox: Sandbox, protected: Collection[str] = ()) -> Patch:
    """The changes that the workspace of `sandbox` holds against `pristine`, without those that may not be made.

    `protected` are paths that no trial may change, such as its visible tests. A workspace beyond the sandbox's limits
    yields an empty patch whose `rejected` says so.
    """
    tree = await sandbox.read_tree(lambda path, data: _original(pristine, path) != data)
    if tree.overflow:
        return Patch(rejected=((".", f"workspace too large: {tree.overflow}"),))
    return await asyncio.to_thread(_patch_of, tree, pristine, protected)


def _patch_of(tree: Tree, pristine: Path, protected: Collection[str]) -> Patch:
    changes: dict[str, bytes | None] = {**tree.files, **dict.fromkeys(_deleted(pristine, tree))}
    rejected = [*tree.rejected, *_changed_links(pristine, tree)]
    return filter_patch(Patch(changes, tuple(rejected)), pristine, protected)


def filter_patch(patch: Patch, pristine: Path, protected: Collection[str] = ()) -> Patch:
    """`patch` without the changes that may not be made, which move to `rejected`, and with its text made anew."""
    allowed: dict[str, bytes | None] = {}
    rejected = list(patch.rejected)
    for path, data in sorted(patch.files.items()):
        reason = drop_reason(path, pristine, protected) or _content_reason(path, data, pristine)
        if reason:
            rejected.append((path, reason))
        else:
            allowed[path] = data
    return Patch(allowed, tuple(rejected), _render(pristine, allowed))


def drop_reason(path: str, pristine: Path, protected: Collection[str] = ()) -> str:
    """Why a change of `path` is not accepted; empty if it is."""
    try:
        parts = relative_parts(path)
    except WorkspaceError as error:
        return str(error)
    if not parts or not path.isprintable() or "/".join(parts) != path:
        return "no plain relative path"
    if path in protected:
        return "a test file of the task"
    if not NO_SOURCES.isdisjoint(parts):
        return "no source file"
    name = parts[-1]
    hooks = _TEST_SETTINGS.fullmatch(name) or name in INTERPRETER_HOOKS or name.endswith(_HOOK_SUFFIXES)
    if hooks or any(part.endswith(_METADATA_SUFFIXES) for part in parts):
        return "configures or hooks into the test run"
    if _TEST_FILE.fullmatch(name) or parts[0] == "test" or not _TEST_FOLDERS.isdisjoint(parts[:-1]):
        return "a test, or something that tests use"
    return _hides(parts, pristine, protected)


def _hides(parts: tuple[str, ...], pristine: Path, protected: Collection[str]) -> str:
    """Whether the file at `parts` is a module, or part of one, that is found in the place of a trusted one."""
    folders = ["/".join(parts[:depth]) for depth in range(len(parts))]
    tests = {PurePosixPath(path) for path in protected if path.endswith(".py")}
    modules = {_module_path(path) for path in tests}
    inside_test = any(folder in modules or folder in protected for folder in folders)
    if inside_test or (parts[-1].endswith(_MODULE_SUFFIXES) and _stem(parts) in modules):
        return "would stand in for a hidden test or its helper"
    roots = _PATH_FOLDERS | {_import_root(path, pristine, protected) for path in tests}
    for depth, folder in enumerate(folders):
        top = parts[depth].split(".")[0]
        trusted = top in sys.stdlib_module_names or top in _RUNNER_MODULES
        is_module = depth < len(parts) - 1 or parts[depth].endswith(_MODULE_SUFFIXES)
        if folder in roots and trusted and is_module and not (pristine / folder / parts[depth]).exists():
            return f"would hide the trusted module {top}"
    return ""


def _module_path(path: PurePosixPath) -> str:
    """The path of the module in a file, without suffix: `a/b` for a/b.py and for a/b/__init__.py alike."""
    return str(path.parent if path.name == "__init__.py" else path.with_suffix(""))


def _import_root(test: PurePosixPath, pristine: Path, protected: Collection[str]) -> str:
    """The folder that a test runner puts on sys.path for `test`: the first above it that is no package."""
    folder = test.parent
    while folder.name and ((pristine / folder / "__init__.py").exists() or str(folder / "__init__.py") in protected):
        folder = folder.parent
    return str(folder) if folder.name else ""


def _stem(parts: tuple[str, ...]) -> str:
    """As `_module_path`, but an `__init__` is none of interest, and a suffix may have several dots."""
    return "/".join((*parts[:-1], parts[-1].split(".")[0]))


def _content_reason(path: str, data: bytes | None, pristine: Path) -> str:
    """Why this new content of an acceptable path is not accepted; empty if it is."""
    if path != "pyproject.toml" and not path.endswith("/pyproject.toml"):
        return ""
    if _test_settings(data) != _test_settings(_original(pristine, path)):
        return "changes settings of the test run"
    return ""


def _test_settings(data: bytes | None) -> dict[str, Any] | None:
    """What a pyproject.toml says to test tools; None if it cannot be read."""
    try:
        tool = tomllib.loads((data or b"").decode("utf-8")).get("tool", {})
        return {name: tool[name] for name in ("pytest", "coverage", "tox", "nox", "hatch") if name in tool}
    except (ValueError, TypeError, RecursionError):
        return None


async def apply(patch: Patch, sandbox: Sandbox) -> None:
    """Write the patch's files into the workspace of `sandbox`, deletions first.

    Raises:
        WorkspaceError: the patch does not fit, e.g. it puts a file where a folder is.
    """
    deletions = {path: None for path, data in patch.files.items() if data is None}
    contents = {path: data for path, data in patch.files.items() if data is not None}
    await sandbox.write_files(deletions)
    await sandbox.write_files(contents)


def _original(pristine: Path, path: str) -> bytes | None:
    file = pristine / path
    return file.read_bytes() if file.is_file() and not file.is_symlink() else None


def _deleted(pristine: Path, tree: Tree) -> list[str]:
    """Files of the snapshot that the workspace lacks, except where something unacceptable took the place."""
    taken = [PurePosixPath(path) for path, _ in tree.rejected] + [PurePosixPath(path) for path in tree.links]
    missing = []
    for path in _regular_files(pristine):
        if path not in tree.seen and not any(PurePosixPath(path).is_relative_to(place) for place in taken):
            missing.append(path)
    return missing


def _regular_files(pristine: Path) -> Iterable[str]:
    for file in pristine.rglob("*"):
        relative = file.relative_to(pristine)
        if file.is_file() and not file.is_symlink() and PRUNED.isdisjoint(relative.parts):
            yield relative.as_posix()


def _changed_links(pristine: Path, tree: Tree) -> list[tuple[str, str]]:
    def known(path: str, target: str) -> bool:
        link = pristine / path
        return link.is_symlink() and str(link.readlink()) == target

    return [(path, "a link") for path, target in sorted(tree.links.items()) if not known(path, target)]


def _render(pristine: Path, files: Mapping[str, bytes | None]) -> str:
    pieces: list[str] = []
    size = 0
    for path, data in sorted(files.items()):
        piece = _render_file(path, _original(pristine, path), data)
        size += len(piece)
        if size > _TEXT_LIMIT:
            pieces.append(f"... {len(files) - len(pieces)} more changed files are not shown\n")
            break
        pieces.append(piece)
    return "".join(pieces)


def _render_file(path: str, before: bytes | None, after: bytes | None) -> str:
    header = f"diff --git a/{path} b/{path}\n"
    old, new = _lines(before), _lines(after)
    if old is None or new is None:
        return f"{header}Binary files differ\n"
    if len(old) + len(new) > _DIFF_LINES:  # difflib's time can grow with the square of the lines
        return f"{header}Files of {len(old)} and {len(new)} lines differ\n"
    from_name = "/dev/null" if before is None else f"a/{path}"
    to_name = "/dev/null" if after is None else f"b/{path}"
    lines = difflib.unified_diff(old, new, from_name, to_name)
    return header + "".join(x if x.endswith("\n") else f"{x}\n\\ No newline at end of file\n" for x in lines)


def _lines(data: bytes | None) -> list[str] | None:
    """Lines of a text, split at newlines only; None for binary content."""
    if data is None:
        return []
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    return [line for line in text.replace("\n", "\n\0").split("\0") if line]
