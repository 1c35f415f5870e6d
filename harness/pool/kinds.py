"""What the facts of each grading kind must look like, checked when a task is read, long before it is graded.

A kind is a name in `metadata.report`. Its grader lies in `harness.verifier.graders`; here is only what a task must
bring along for it. A kind of one's own needs no entry: `register_grader` makes an empty one.
"""

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from harness import syntax

if TYPE_CHECKING:
    from harness.pool.schema import Grading

UNITTEST_ID = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*){2,}$")
LOG_FORMATS = ("pytest", "unittest", "django", "sympy")
REPORT_PLACE = "{report}"
"""Word in `test_command` that stands for the file that the JUnit report is written to."""


def _accept(grading: "Grading") -> None:
    return None


def _accept_files(grading: "Grading", tests: Path) -> None:
    return None


@dataclass(frozen=True)
class ReportKind:
    """Two checks that raise ValueError: of the facts alone, and of the facts against the folder of hidden tests."""

    facts: Callable[["Grading"], None] = _accept
    files: Callable[["Grading", Path], None] = _accept_files


REPORT_KINDS: dict[str, ReportKind] = {}
"""Kinds by name. Filled below and, for kinds of plugins, by `harness.verifier.register_grader`."""


def split_pytest_id(test_id: str) -> tuple[str, list[str], str]:
    """(file, names of classes and function, `[parameters]` or an empty string) of a pytest id.

    Raises:
        ValueError: it is no such id.
    """
    plain, bracket, parameters = test_id.partition("[")
    file, *names = plain.split("::")
    path = PurePosixPath(file)
    usable = path.suffix == ".py" and not path.is_absolute() and ".." not in path.parts and str(path) == file
    if not usable or not names or not all(name.isidentifier() for name in names) or (bracket and test_id[-1] != "]"):
        raise ValueError(f"test id {test_id!r} is not of the form path/test_file.py::Class::test_name[parameters]")
    return file, names, bracket + parameters


def _needs_failing_tests(grading: "Grading") -> None:
    if not grading.fail_to_pass:
        raise ValueError("fail_to_pass is empty; name at least one test that the snapshot fails")


def _needs_no_command(grading: "Grading") -> None:
    if grading.test_command is not None:
        raise ValueError(
            f"test_command is not supported with report {grading.report!r}, whose runner is the grader's own; "
            "remove it, or choose report 'junit' or 'log'"
        )


def _needs_command(grading: "Grading") -> None:
    if not grading.test_command:
        raise ValueError(f"test_command is missing; report {grading.report!r} needs the argv that runs the tests")


def _unittest_facts(grading: "Grading") -> None:
    _needs_failing_tests(grading)
    _needs_no_command(grading)
    for test_id in grading.expected:
        if not UNITTEST_ID.match(test_id):
            raise ValueError(f"test id {test_id!r} is not of the form module.Class.test_name")


def _unittest_files(grading: "Grading", tests: Path) -> None:
    if not any(tests.rglob("test_*.py")):
        raise ValueError("no hidden tests; put test_*.py files into tests/")
    modules = _Modules(tests)
    for test_id in grading.expected:
        *module, class_name, test_name = test_id.split(".")
        file = Path(*module).with_suffix(".py")
        modules.check(file, test_id, [class_name, test_name], plain_bases=("unittest.TestCase", "TestCase"))


def _pytest_facts(grading: "Grading") -> None:
    _needs_failing_tests(grading)
    _needs_no_command(grading)
    for test_id in grading.expected:
        split_pytest_id(test_id)


def _pytest_files(grading: "Grading", tests: Path) -> None:
    problems = pytest_problems(grading.expected, tests)
    if problems:
        raise ValueError(next(iter(problems.values())))


def pytest_problems(test_ids: Iterable[str], tests: Path) -> dict[str, str]:
    """Why no run could report some of these pytest ids: their file or name is not in the folder `tests`."""
    modules = _Modules(tests)
    problems: dict[str, str] = {}
    for test_id in test_ids:
        path, names, _ = split_pytest_id(test_id)
        try:
            modules.check(Path(path), test_id, names, plain_bases=("unittest.TestCase", "TestCase", "object"))
        except ValueError as error:
            problems[test_id] = str(error)
    return problems


def _junit_facts(grading: "Grading") -> None:
    _needs_failing_tests(grading)
    _needs_command(grading)
    if not any(REPORT_PLACE in word for word in grading.test_command or []):
        raise ValueError(
            f"test_command does not say where the report goes; write {REPORT_PLACE} for its path, "
            f"as in --junitxml={REPORT_PLACE}"
        )


def _log_facts(grading: "Grading") -> None:
    _needs_failing_tests(grading)
    _needs_command(grading)
    if grading.log_parser is None:
        raise ValueError(f"log_parser is missing; name the form of the tests' output, such as {', '.join(LOG_FORMATS)}")


def _some_file(grading: "Grading", tests: Path) -> None:
    if not any(file.is_file() and file.name != "test.sh" for file in tests.rglob("*")):
        raise ValueError("no hidden tests; put the files that test_command needs into tests/")


def _script_facts(grading: "Grading") -> None:
    if grading.expected or grading.test_command:
        raise ValueError(
            "report 'script' takes its reward from tests/test.sh; remove fail_to_pass, pass_to_pass and test_command, "
            "or choose another report"
        )


def _script_files(grading: "Grading", tests: Path) -> None:
    if not (tests / "test.sh").is_file():
        raise ValueError("no tests/test.sh; report 'script' runs it, so write one")


REPORT_KINDS |= {
    "unittest": ReportKind(_unittest_facts, _unittest_files),
    "pytest": ReportKind(_pytest_facts, _pytest_files),
    "junit": ReportKind(_junit_facts, _some_file),
    "log": ReportKind(_log_facts, _some_file),
    "script": ReportKind(_script_facts, _script_files),
}


class _Modules:
    """The test files of one task, each parsed once: a task of a large project has thousands of tests in few files."""

    def __init__(self, tests: Path) -> None:
        self._tests = tests
        self._bodies: dict[Path, list[ast.stmt]] = {}

    def check(self, path: Path, test_id: str, names: list[str], plain_bases: tuple[str, ...]) -> None:
        """Refuse an id that no run could report: such a task would score 0 for ever.

        Raises:
            ValueError: the file at `path`, or a name in it, is not there.
        """
        body = self._body(path, test_id)
        where = path.name
        for name in names[:-1]:
            found = next((n for n in body if isinstance(n, ast.ClassDef) and n.name == name), None)
            if found is None:
                raise ValueError(f"test {test_id} is outside the tests; {where} has no class {name}")
            # A class may inherit its tests, or make them; only a plain one can be judged by its text.
            if found.decorator_list or any(ast.unparse(base) not in plain_bases for base in found.bases):
                return
            body, where = found.body, name
        functions = {n.name for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        functions |= {a.asname or a.name for n in body if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names}
        plain = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Expr, ast.Import, ast.ImportFrom)
        made = "*" in functions or any(not isinstance(n, plain) for n in body)
        if names[-1] not in functions and (len(names) > 1 or not made):
            raise ValueError(f"test {test_id} is outside the tests; {where} has no {names[-1]}")

    def _body(self, path: Path, test_id: str) -> list[ast.stmt]:
        if path not in self._bodies:
            file = self._tests / path
            if not file.is_file():
                raise ValueError(f"test {test_id} would lie in {file.name}, which tests/ does not have")
            try:
                self._bodies[path] = syntax.parse(file.read_bytes()).body
            except (SyntaxError, ValueError, RecursionError) as error:
                raise ValueError(f"{file} is not valid Python: {error}") from error
        return self._bodies[path]
