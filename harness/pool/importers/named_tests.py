"""Finding the tests that a data set calls Class.test, without saying in which file."""

import ast
from collections.abc import Iterable, Mapping

from harness import syntax


def find_tests(names: Iterable[str], files: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """pytest ids by name, and notes on the names that no file, or more than one, has.

    A name is Class.test or test, with parameters in brackets; an id is path::Class::test[parameters].
    """
    outlines = {path: _outline(text) for path, text in files.items()}
    ids: dict[str, str] = {}
    lost: list[str] = []
    for name in names:
        plain, bracket, parameters = name.partition("[")
        parts = plain.split(".")
        places = [path for path, outline in outlines.items() if name and _has(outline, parts)]
        if len(places) == 1:
            ids[name] = "::".join([places[0], *parts]) + bracket + parameters
        else:
            lost.append(name)
    notes = [f"{len(lost)} tests left out, which no file or several have, e.g. {lost[0]!r}"] if lost else []
    return ids, notes


def _outline(text: str) -> dict[str, set[str] | None]:
    """Functions of a module (None), and of each class what it defines; an unknown base may define anything."""
    try:
        body = syntax.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[str, set[str] | None] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = None
        elif isinstance(node, ast.ClassDef):
            names = {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
            local = {base.id for base in node.bases if isinstance(base, ast.Name)}
            for base in local:
                names |= found.get(base) or set()
            found[node.name] = names
    return found


def _has(outline: Mapping[str, set[str] | None], parts: list[str]) -> bool:
    match parts:
        case [function]:
            return function in outline and outline[function] is None
        case [group, function]:
            return function in (outline.get(group) or set())
    return False
