"""What a trial changed: the difference between its workspace and the snapshot that the host kept.

It is found by reading files, not by asking the workspace's git. What could turn the grading instead of the code (test
files, runner configuration, start-up hooks, modules in the place of the standard library's) is left out, and each path
left out is recorded with its reason. A patch can be stored, read back and graded again.
"""

import base64
import binascii
import difflib
import json
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Self

from harness.sandbox import Sandbox, Tree, WorkspaceError
from harness.sandbox.tree import PRUNED, relative_parts

_HOOKS = frozenset(
    {"conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "sitecustomize.py", "usercustomize.py"}
)
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
    changes: dict[str, bytes | None] = {**tree.files, **dict.fromkeys(_deleted(pristine, tree))}
    rejected = [*tree.rejected, *_changed_links(pristine, tree)]
    return filter_patch(Patch(changes, tuple(rejected)), pristine, protected)


def filter_patch(patch: Patch, pristine: Path, protected: Collection[str] = ()) -> Patch:
    """`patch` without the changes that may not be made, which move to `rejected`, and with its text made anew."""
    allowed: dict[str, bytes | None] = {}
    rejected = list(patch.rejected)
    for path, data in sorted(patch.files.items()):
        reason = drop_reason(path, pristine, protected)
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
    name = parts[-1]
    if name in _HOOKS or name.endswith((".pth", ".pyc", ".pyo")):
        return "configures or hooks into the test run"
    if any(part in PRUNED for part in parts):
        return "no source file"
    top = PurePosixPath(parts[0])
    shadows = top.name.split(".")[0] in sys.stdlib_module_names and (len(parts) > 1 or top.suffix in (".py", ".so"))
    if shadows and not (pristine / top).exists():
        return f"would hide the standard library's {top.name.split('.')[0]}"
    return ""


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
