"""All bugs that can be put into a file, and the text of the file with one or two of them.

Of a file only the top-level statements that change are written anew; the rest keeps its text, byte for byte.
"""

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from harness import syntax
from harness.pool.builder.bugs import BUGS, Bug, Change, Place

_MOST_LINES = 20_000


class UnreadableSource(ValueError):
    """A file that libcst cannot parse."""


@dataclass(frozen=True, eq=False)
class Site:
    """One way to put one bug in. `top` is the number of the top-level statement, `function` is dotted."""

    kind: str
    top: int
    function: str
    original: cst.CSTNode
    change: Change


@dataclass(frozen=True)
class Rendered:
    """A file with bugs. `lines` is a mask of the original's lines that they touch; `removed` and `added` are its
    lines of the diff, `statements` the top-level statements that change, as they were.
    """

    text: str
    lines: int
    removed: tuple[str, ...]
    added: tuple[str, ...]
    statements: tuple[str, ...] = ()


class SourceFile:
    """A Python file and the bugs it could have."""

    def __init__(self, path: str, text: str) -> None:
        """Parse `text`.

        Raises:
            UnreadableSource: libcst cannot.
        """
        self.path, self.text = path, text
        try:
            if text.count("\n") > _MOST_LINES:
                raise UnreadableSource(f"{path} has more than {_MOST_LINES} lines")
            self.module = cst.parse_module(text)
            tree = syntax.parse(text)
        except (cst.ParserSyntaxError, SyntaxError, RecursionError, ValueError) as error:
            raise UnreadableSource(f"{path} cannot be parsed: {error}") from error
        self._codes = [self.module.code_for_node(statement) for statement in self.module.body]
        around = self.module.with_changes(body=[])
        head = "".join(self.module.code_for_node(line) for line in around.header)
        self._head, self._foot = head, "".join(self.module.code_for_node(line) for line in around.footer)
        if self._join(self._codes) != text:
            raise UnreadableSource(f"{path} does not come out of the parser as it went in")
        self._firsts = _function_lines(tree)

    def sites(self, kinds: Collection[str] = ()) -> list[Site]:
        """Every bug of the `kinds` (none: all) that could be put in, in the order of the text."""
        bugs: dict[type[cst.CSTNode], list[Bug]] = {}
        for bug in BUGS.values():
            if not kinds or bug.name in kinds:
                for node in bug.nodes:
                    bugs.setdefault(node, []).append(bug)
        found: list[Site] = []
        for top, statement in enumerate(self.module.body):
            if isinstance(statement, cst.FunctionDef | cst.ClassDef | cst.If | cst.Try):
                statement.visit(_Finder(bugs, top, found))
        return found

    def render(self, sites: Sequence[Site]) -> Rendered | None:
        """The file with `sites` put in; None if it is no Python then, or means the same as before."""
        codes = list(self._codes)
        changed_tops = sorted({site.top for site in sites})
        for top in changed_tops:
            replaced = {id(site.original): site.change for site in sites if site.top == top}
            try:
                changed: Any = self.module.body[top].visit(_Replacer(replaced))
                codes[top] = self.module.code_for_node(changed)
            except (cst.CSTValidationError, TypeError, AttributeError, ValueError):
                return None  # the change does not fit its place
            try:
                tree = syntax.parse(codes[top])
                compile(tree, self.path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError):
                return None
            if ast.dump(tree) == ast.dump(syntax.parse(self._codes[top])):
                return None
        return self._compare(self._join(codes), [(top, codes[top]) for top in changed_tops])

    def _join(self, codes: Sequence[str]) -> str:
        return self._head + "".join(codes) + self._foot

    def _compare(self, text: str, changed: Sequence[tuple[int, str]]) -> Rendered:
        mask, removed, added = 0, list[str](), list[str]()
        for top, code in changed:
            before, after = self._codes[top].splitlines(), code.splitlines()
            start = 0
            while start < min(len(before), len(after)) and before[start] == after[start]:
                start += 1
            end = 0
            while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
                end += 1
            first = self._head.count("\n") + sum(c.count("\n") for c in self._codes[:top]) + 1
            old, new = before[start : len(before) - end], after[start : len(after) - end]
            removed += old
            added += new
            # Where lines are only added, those around them tell which tests come by.
            touched = (
                range(first + start, first + start + len(old)) if old else range(first + start - 1, first + start + 1)
            )
            for line in touched:
                mask |= 1 << line
                mask |= 1 << self._firsts.get(line, line)
        return Rendered(text, mask, tuple(removed), tuple(added), tuple(self._codes[top] for top, _ in changed))


class _Finder(cst.CSTVisitor):
    """Collects the sites of one top-level statement."""

    def __init__(self, bugs: Mapping[type[cst.CSTNode], Sequence[Bug]], top: int, found: list[Site]) -> None:
        super().__init__()
        self.bugs, self.top, self.found = bugs, top, found
        self.parents: list[cst.CSTNode] = []
        self.names: list[str] = []
        self.functions = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.BaseParenthesizableWhitespace | cst.TrailingWhitespace):
            return False
        in_class = bool(self.names)
        place = None
        for bug in self.bugs.get(type(node), ()):
            if self.functions or (bug.in_class and (in_class or isinstance(node, cst.ClassDef | cst.FunctionDef))):
                place = place or Place(tuple(self.parents), tuple(self.names))
                name = ".".join([*self.names, *([node.name.value] if isinstance(node, _Named) else [])])
                for change in bug.change(node, place):
                    self.found.append(Site(bug.name, self.top, name, node, change))
        self.parents.append(node)
        if isinstance(node, _Named):
            self.names.append(node.name.value)
            self.functions += isinstance(node, cst.FunctionDef)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if self.parents and self.parents[-1] is original_node:
            self.parents.pop()
            if isinstance(original_node, _Named):
                self.names.pop()
                self.functions -= isinstance(original_node, cst.FunctionDef)


_Named = cst.FunctionDef | cst.ClassDef


class _Replacer(cst.CSTTransformer):
    def __init__(self, replaced: Mapping[int, Change]) -> None:
        super().__init__()
        self.replaced = replaced

    def on_leave(self, original_node: cst.CSTNode, updated_node: Any) -> Any:
        if id(original_node) in self.replaced:
            return self.replaced[id(original_node)]
        if (
            isinstance(original_node, cst.SimpleStatementLine)
            and _only_pass(updated_node)
            and not _only_pass(original_node)
        ):
            return cst.RemoveFromParent()  # a lone `pass` would show where something is gone
        return updated_node


def _only_pass(line: Any) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and all(isinstance(part, cst.Pass) for part in line.body)


def _function_lines(tree: ast.Module) -> dict[int, int]:
    """For the lines of a function's head, which no test runs: the line by which its calls are recorded."""
    lines: dict[int, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            for line in range(first, max(first + 1, node.body[0].lineno)):
                lines[line] = first
    return lines
