"""Test results from what people read on a terminal, for tasks that offer nothing better.

A parser is given the whole output and the ids that count, and yields (id, status) for each result it finds. Ids that
contain spaces, brackets or dashes are told from the text behind them by the ids that count.
"""

import re
from collections.abc import Callable, Collection, Iterator

LogParser = Callable[[str, Collection[str]], list[tuple[str, str]]]

LOG_PARSERS: dict[str, LogParser] = {}
"""Parsers by the name that a task's `metadata.log_parser` gives."""

_PYTEST_WORDS = {
    "PASSED": "passed",
    "FAILED": "failed",
    "ERROR": "error",
    "SKIPPED": "skipped",
    "XFAIL": "xfailed",
    "XPASS": "xpassed",
}
_PYTEST_LINE = re.compile(rf"({'|'.join(_PYTEST_WORDS)}) (?:\[\d+\] )?(.+)")
_SUMMARY = re.compile(r"^=+ short test summary info =+$", re.M)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

_SYMPY_WORDS = {"ok": "passed", "F": "failed", "E": "error", "s": "skipped", "f": "xfailed", "X": "xpassed"}
_SYMPY_LINE = re.compile(rf"(test_\S+) ({'|'.join(_SYMPY_WORDS)})(?: +\[(?:OK|FAIL)\])?\s*")

_UNITTEST_START = re.compile(r"^(\w+) \(([\w.]+)\)")
_UNITTEST_END = re.compile(
    r"(?:\.\.\. |^)(ok|FAIL|ERROR|skipped\b.*|expected failure|unexpected success)\s*$",
)
_UNITTEST_WORDS = {
    "ok": "passed",
    "FAIL": "failed",
    "ERROR": "error",
    "expected failure": "xfailed",
    "unexpected success": "xpassed",
}


def register_log_parser(name: str) -> Callable[[LogParser], LogParser]:
    """Function decorator: make a parser known as `name`."""

    def register(parser: LogParser) -> LogParser:
        if name in LOG_PARSERS:
            raise ValueError(f"log parser {name!r} is registered twice; choose another name")
        LOG_PARSERS[name] = parser
        return parser

    return register


@register_log_parser("pytest")
def parse_pytest(log: str, expected: Collection[str]) -> list[tuple[str, str]]:
    """The last short test summary of `pytest -rA`; what tests print before it counts for nothing."""
    text = _COLOURS.sub("", log).replace("\r\n", "\n")
    headers = list(_SUMMARY.finditer(text))
    if not headers:
        return []
    rows = []
    for line in text[headers[-1].end() :].split("\n"):
        match = _PYTEST_LINE.fullmatch(line)
        if match:
            rows.append((_cut(match[2], expected), _PYTEST_WORDS[match[1]]))
    return rows


def _cut(text: str, expected: Collection[str]) -> str:
    """The id at the beginning of `text`, which a reason may follow after a dash."""
    if text in expected:
        return text
    ends = [match.start() for match in re.finditer(" - ", text)]
    return next((text[:end] for end in ends if text[:end] in expected), text[: ends[0]] if ends else text)


@register_log_parser("unittest")
def parse_unittest(log: str, expected: Collection[str]) -> list[tuple[str, str]]:
    """`python -m unittest -v`. Ids are module.Class.test_name, whichever of its two forms Python prints."""
    return [(_dotted(name, where), status) for name, where, _, status in _unittest_results(log)]


def _dotted(name: str, where: str) -> str:
    return where if where.endswith(f".{name}") else f"{where}.{name}"


@register_log_parser("django")
def parse_django(log: str, expected: Collection[str]) -> list[tuple[str, str]]:
    """Django's `runtests.py -v 2`. Ids are `test_name (module.Class)`; a test with a docstring goes by that as well."""
    rows = []
    for name, where, title, status in _unittest_results(log):
        rows.append((f"{name} ({where.removesuffix('.' + name)})", status))
        if title and title in expected:
            rows.append((title, status))
    return rows


@register_log_parser("sympy")
def parse_sympy(log: str, expected: Collection[str]) -> list[tuple[str, str]]:
    """SymPy's `bin/test --verbose`. Ids are the bare names of functions: of two alike, both must pass."""
    rows: dict[str, str] = {}
    for line in _COLOURS.sub("", log).replace("\r\n", "\n").split("\n"):
        match = _SYMPY_LINE.fullmatch(line)
        if match and rows.get(match[1], "passed") == "passed":
            rows[match[1]] = _SYMPY_WORDS[match[2]]
    return list(rows.items())


def _unittest_results(log: str) -> Iterator[tuple[str, str, str, str]]:
    """(name, text in brackets, docstring's first line or "", status); other output may stand before the result."""
    name = where = title = ""
    for line in log.replace("\r\n", "\n").split("\n"):
        if line.startswith("=" * 70):  # the failures in detail follow, which name the tests again
            name = ""
        start = _UNITTEST_START.match(line)
        if start:
            name, where, title = start[1], start[2], ""
            line = line[start.end() :]
        elif name and " ... " in line:
            title = line.rsplit(" ... ", 1)[0]
        end = _UNITTEST_END.search(line)
        if name and end:
            word = end[1]
            yield name, where, title, "skipped" if word.startswith("skipped") else _UNITTEST_WORDS[word]
            name = ""
