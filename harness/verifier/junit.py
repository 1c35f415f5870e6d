"""Reading JUnit XML that hostile code may have written.

Declarations of types and entities are refused before anything is expanded, and size, depth and number are bounded.
"""

from typing import NoReturn
from xml.parsers import expat

_MAX_CASES = 200_000
_MAX_DEPTH = 32
_STATUS = {"failure": "failed", "error": "error", "skipped": "skipped"}
_RERUNS = frozenset({"flakyFailure", "flakyError", "rerunFailure", "rerunError"})


class JUnitError(ValueError):
    """Text that is no JUnit report, or one that no test runner writes."""


def parse_junit(data: bytes) -> list[tuple[str, str]]:
    """(id, status) of each test case in order; the id is `classname::name`, or `name` without a class.

    A test that passed only when run again is `flaky`.

    Raises:
        JUnitError: not well-formed, with declarations of types or entities, or out of bounds.
    """
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    for forbidden in ("StartDoctypeDecl", "EntityDecl", "UnparsedEntityDecl", "ExternalEntityRef"):
        setattr(parser, f"{forbidden}Handler", _refuse)
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError) as error:
        raise JUnitError(f"no JUnit XML: {error}") from error
    if reader.root not in ("testsuites", "testsuite"):
        raise JUnitError(f"the root element is {reader.root!r}; JUnit's is testsuites or testsuite")
    return reader.rows


def _refuse(*_: object) -> NoReturn:
    raise JUnitError("it declares a document type or an entity, which JUnit reports do not")


class _Reader:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self.root = ""
        self._path: list[str] = []
        self._id = ""
        self._status = ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.root = self.root or tag
        if len(self._path) >= _MAX_DEPTH or len(self.rows) >= _MAX_CASES:
            raise JUnitError(f"more than {_MAX_DEPTH} levels or {_MAX_CASES} tests")
        if tag == "testcase":
            class_name, name = attributes.get("classname", ""), attributes.get("name", "")
            self._id = f"{class_name}::{name}" if class_name else name
            self._status = "passed"
        elif self._path and self._path[-1] == "testcase":
            if tag in _STATUS and self._status in ("passed", "flaky"):
                self._status = _STATUS[tag]
            elif tag in _RERUNS and self._status == "passed":
                self._status = "flaky"
        self._path.append(tag)

    def end(self, tag: str) -> None:
        self._path.pop()
        if tag == "testcase":
            self.rows.append((self._id, self._status))
