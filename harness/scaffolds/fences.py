"""Fenced code blocks in a model's answer, and the file edits they stand for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_OPENING = re.compile(r"[^`]*(`{3,})([^`]*)")
_MAX_PATH_BYTES = 240


@dataclass(frozen=True)
class Block:
    """A fenced block: its info string, its text ending in a newline, and whether a closing fence was seen."""

    info: str
    text: str
    closed: bool


@dataclass(frozen=True)
class Edit:
    """The whole new text of a file; `path` is relative to the repository."""

    path: str
    text: str


def fenced_blocks(answer: str) -> list[Block]:
    """The blocks of an answer, in order.

    A closing fence stands alone on its line and is at least as long as the opening one; a last line that merely ends
    with the fence closes its block too, since small models write that. Text up to the end of the answer counts as a
    block that is not closed: a stop string is not part of the answer, so a well-formed answer may end like this.
    """
    blocks: list[Block] = []
    fence, info, body = "", "", list[str]()
    for line in answer.split("\n"):
        if not fence:
            if opening := _OPENING.fullmatch(line):
                fence, info, body = opening[1], opening[2].strip(), []
        elif re.fullmatch(rf" {{0,3}}{fence}`*\s*", line):
            blocks.append(Block(info, _text(body), closed=True))
            fence = ""
        else:
            body.append(line)
    if fence:
        last = body.pop().rstrip() if body else ""
        closed = last.endswith(fence)
        rest = last.rstrip("`") if closed else last
        blocks.append(Block(info, _text([*body, rest] if rest else body), closed))
    return blocks


def read_edits(answer: str, editable: Sequence[str], *, cut: bool) -> tuple[list[Edit], list[str]]:
    """The edits in an answer, and for each block without one the reason.

    A block names its file after the language of its info string (```` ```python src/a.py ````) or in a first line
    `# src/a.py`; when one file is editable it need not be named. Of several blocks for a file the last counts. When
    the answer was `cut` by length, a block that is not closed is half a file and no edit. `refusal` checks the paths.
    """
    edits: dict[str, Edit] = {}
    problems = []
    for block in fenced_blocks(answer):
        if cut and not block.closed:
            problems.append("the last block was cut off")
        elif not block.text.strip():
            problems.append("a block is empty")
        elif edit := _edit_of(block, editable):
            edits[edit.path] = edit
        else:
            problems.append("a block does not name its file after the language")
    return list(edits.values()), problems


def refusal(path: str, snapshot: Path, editable: Sequence[str]) -> str | None:
    """Why `path` may not be written, or None. `snapshot` is the repository as the host holds it."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        return "the path must be relative and stay in the repository"
    if not path.isprintable() or "\\" in path or len(path.encode()) > _MAX_PATH_BYTES:
        return "the path is too long or has characters that are not allowed"
    if ".git" in (part.lower() for part in pure.parts):
        return "git's own files may not be changed"
    file = snapshot / pure
    if str(pure) not in editable and (file.is_symlink() or file.exists()):
        return "this file may not be changed"
    return None


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _edit_of(block: Block, editable: Sequence[str]) -> Edit | None:
    only = editable[0] if len(editable) == 1 else None
    words = [word.strip("\"'{}") for word in re.split(r"[\s:=]+", block.info)]
    named = next((w for w in words if w in editable), None)
    if named is None and len(words) > 1 and re.search(r"[./]", words[1]):
        named = words[1]
    if named is None and only is None and words and re.search(r"[./]", words[0]):
        named = words[0]
    first, _, rest = block.text.partition("\n")
    comment = first.removeprefix("#").strip() if first.startswith("#") else ""
    if comment in editable and named in (None, comment):
        return Edit(comment, rest)
    path = named or only
    return Edit(str(PurePosixPath(path)), block.text) if path else None
