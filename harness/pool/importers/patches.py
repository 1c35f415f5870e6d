"""Unified diffs of strangers: checked as text, then applied by git to copies of the files that they name."""

import ast
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.pool.git import GitError, run_git
from harness.pool.importers.values import ImportProblem

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_GIT_HEADER = re.compile(rf"diff --git ({_QUOTED}|a/.+) ({_QUOTED}|b/.+)")


@dataclass(frozen=True)
class FileChange:
    """Paths of one file before and after; None where it does not exist."""

    old: str | None
    new: str | None


def safe_path(path: str) -> str:
    """`path` itself, if it is relative, stays below its root and is nothing of git's.

    Raises:
        ImportProblem: it is not.
    """
    parts = PurePosixPath(path).parts
    bad = not parts or path.startswith("/") or ".." in parts or "\0" in path or "\\" in path or "\n" in path
    if bad or any(part.lower() == ".git" for part in parts):
        raise ImportProblem(f"path {path[:120]!r} leads out of the repository, or into its .git")
    return path


def parse_patch(text: str, name: str = "patch") -> list[FileChange]:
    """The files that a unified diff changes, its hunks counted.

    Raises:
        ImportProblem: it is no whole diff in git's form, changes nothing, or leads out of the repository.
    """
    changes: list[FileChange] = []
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        if lines[at].startswith(("diff --git ", "--- ")):
            change, at = _parse_file(lines, at, name)
            changes.append(change)
        elif _HUNK.match(lines[at]):
            raise ImportProblem(f"bad {name}: line {at + 1}: a hunk without the name of its file")
        else:
            at += 1
    if not changes:
        raise ImportProblem(f"bad {name}: it changes no file: {text.strip()[:80]!r}")
    return changes


def _parse_file(lines: list[str], at: int, name: str) -> tuple[FileChange, int]:
    old = new = None
    git = lines[at].startswith("diff --git ")
    if git:
        old, new = _header_paths(lines[at], at, name)
        at += 1
        while at < len(lines) and not lines[at].startswith(("diff --git ", "--- ", "@@ ")):
            line = lines[at]
            if line.startswith("new file mode"):
                old = None
                if line.split()[-1] in ("120000", "160000"):
                    raise ImportProblem(f"bad {name}: {new} is made a link or a submodule")
            elif line.startswith("deleted file mode"):
                new = None
            elif line.startswith(("rename from ", "copy from ")):
                old = safe_path(_unquote(line.split(" ", 2)[2]))
            elif line.startswith(("rename to ", "copy to ")):
                new = safe_path(_unquote(line.split(" ", 2)[2]))
            elif line.startswith("Binary files "):
                raise ImportProblem(f"bad {name}: {new or old} is binary and its content is not in the patch")
            at += 1
    if at < len(lines) and lines[at].startswith("--- "):
        if at + 1 >= len(lines) or not lines[at + 1].startswith("+++ "):
            raise ImportProblem(f"bad {name}: line {at + 1}: '---' without '+++'")
        old, new = _side(lines[at], "a/", name), _side(lines[at + 1], "b/", name)
        at = _skip_hunks(lines, at + 2, name)
    if old is None and new is None:
        raise ImportProblem(f"bad {name}: line {at}: a change of no file")
    return FileChange(old, new), at


def _skip_hunks(lines: list[str], at: int, name: str) -> int:
    start = at
    while at < len(lines) and (match := _HUNK.match(lines[at])):
        before, after = (int(count) if count is not None else 1 for count in match.groups())
        at += 1
        while before > 0 or after > 0:
            line = lines[at] if at < len(lines) else None
            # An editor may have taken the blank from an empty line of context, and the end of the text with it.
            kind = " " if line == "" and at < len(lines) - 1 else (line or "?")[0]
            if kind not in " +-\\":
                raise ImportProblem(f"bad {name}: line {at + 1}: the hunk ends before its {before} and {after} lines")
            before -= kind in " -"
            after -= kind in " +"
            at += 1
        if before < 0 or after < 0:
            raise ImportProblem(f"bad {name}: line {at}: the hunk has more lines than it says")
        if at < len(lines) and lines[at].startswith("\\"):
            at += 1
    if at == start:
        raise ImportProblem(f"bad {name}: line {at}: a file without hunks")
    return at


def _header_paths(line: str, at: int, name: str) -> tuple[str, str]:
    match = _GIT_HEADER.fullmatch(line)
    rest = line.removeprefix("diff --git ")
    half = len(rest) // 2
    if not rest.startswith('"') and rest[:half].removeprefix("a/") == rest[half + 1 :].removeprefix("b/"):
        pair = (rest[:half], rest[half + 1 :])  # the usual case, which a blank in the path would make ambiguous
    elif match:
        pair = (_unquote(match[1]), _unquote(match[2]))
    else:
        raise ImportProblem(f"bad {name}: line {at + 1}: not 'diff --git a/… b/…': {line[:80]!r}")
    if not pair[0].startswith("a/") or not pair[1].startswith("b/"):
        raise ImportProblem(f"bad {name}: line {at + 1}: paths do not begin with a/ and b/: {line[:80]!r}")
    return safe_path(pair[0][2:]), safe_path(pair[1][2:])


def _side(line: str, prefix: str, name: str) -> str | None:
    path = _unquote(line[4:].split("\t")[0].rstrip("\r"))
    if path == "/dev/null":
        return None
    if not path.startswith(prefix):
        raise ImportProblem(f"bad {name}: path {path[:80]!r} does not begin with {prefix}")
    return safe_path(path[2:])


def _unquote(path: str) -> str:
    if not path.startswith('"'):
        return path
    try:
        decoded = ast.literal_eval("b" + path)
    except (ValueError, SyntaxError):
        raise ImportProblem(f"path {path[:80]} is quoted wrongly") from None
    return bytes(decoded).decode("utf-8", "replace")


def apply_patch(
    text: str, original: Callable[[str], bytes | None], name: str = "patch", *, reverse: bool = False
) -> dict[str, bytes | None]:
    """The files that the diff changes, as they are afterwards; None for one that is gone.

    `original` gives a file of the repository, None where there is none. Nothing but copies of these is touched.

    Raises:
        ImportProblem: it does not apply.
    """
    changes = parse_patch(text, name)
    paths = list(dict.fromkeys(path for change in changes for path in (change.old, change.new) if path))
    with tempfile.TemporaryDirectory(prefix="testgrad-patch-") as scratch:
        folder = Path(scratch)
        for path in paths:
            data = original(path)
            if data is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
        data = text.encode("utf-8", "surrogateescape")
        data += b"" if data.endswith(b"\n") else b"\n"
        words = ["apply", "--whitespace=nowarn", *(["-R"] if reverse else []), "-"]
        try:
            run_git(folder, *words, stdin=data)
        except GitError as error:
            raise ImportProblem(f"bad {name}: it does not apply: {error}") from error
        return {path: _read(folder / path, path, name) for path in paths}


def _read(file: Path, path: str, name: str) -> bytes | None:
    if file.is_symlink():
        raise ImportProblem(f"bad {name}: {path} is made a link")
    return file.read_bytes() if file.is_file() else None
