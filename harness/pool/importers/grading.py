"""From a data set's way of grading to a kind of grading that exists here.

Two ways are in use. `f2p_p2p`: two lists of tests, which all must pass. `expected_map`: a status for each test, which
must be met; the tests that it wants passed are what counts here, since a test that fails with the solution applied says
nothing about a repair. Both become kind `pytest` where the ids are pytest's own, which is the protected one, and else
kind `log`, where the output's form is known.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from harness.pool.importers.draft import Draft
from harness.pool.importers.patches import parse_patch
from harness.pool.importers.values import ImportProblem
from harness.pool.kinds import UNITTEST_ID, split_pytest_id

PARSERS = {
    "parse_log_pytest": "pytest",
    "parse_log_pytest_options": "pytest",
    "parse_log_pytest_v2": "pytest",
    "parse_log_pytest_pydantic": "pytest",
    "parse_log_django": "django",
    "parse_log_sympy": "sympy",
    "parse_log_unittest": "unittest",
}
"""Names that public harnesses give to forms of output that are known here."""

_DJANGO_ID = re.compile(r"\w+ \([\w.]+\)")
_SYMPY = ["python", "bin/test", "-C", "--verbose", "--no-colors"]
_DJANGO = ["python", "tests/runtests.py", "--verbosity", "2", "--settings=test_sqlite", "--parallel", "1"]


def grading_facts(draft: Draft) -> tuple[dict[str, Any], list[str]]:
    """The facts for `[metadata]`, and notes on what was left out.

    Raises:
        ImportProblem: no test that the snapshot fails, or no way to grade these ids.
    """
    notes: list[str] = []
    failing, passing = list(draft.fail_to_pass), list(draft.pass_to_pass)
    if draft.expected_map:
        failing, passing = _from_map(draft, notes)
    if both := set(failing) & set(passing):
        notes.append(f"{len(both)} tests are in both lists, and count as failing")
        passing = [test_id for test_id in passing if test_id not in both]
    if not failing:
        raise ImportProblem("FAIL_TO_PASS is empty: a task without a failing test would reward doing nothing")
    everything = [*failing, *passing]
    if is_pytest(failing[0]) or (_looks_like_pytest(failing[0]) and any(map(is_pytest, failing))):
        return _facts("pytest", failing, passing, is_pytest, notes), notes
    parser = PARSERS.get(draft.log_parser or "", draft.log_parser)
    command = draft.test_command
    if draft.repo == "django/django" and any(map(_DJANGO_ID.fullmatch, everything)):
        parser, command = "django", [*_DJANGO, *_django_labels(draft)]
    if draft.repo == "sympy/sympy" and all(map(str.isidentifier, everything)):
        parser, command = "sympy", [*_SYMPY, *_test_files(draft)]
    if command and parser and parser in _known_parsers():
        facts = _facts("log", failing, passing, lambda test_id: True, notes)
        return facts | {"test_command": command, "log_parser": parser}, notes
    if all(map(UNITTEST_ID.fullmatch, everything)) and draft.hidden_files:
        return _facts("unittest", failing, passing, lambda test_id: True, notes), notes
    why = f"log parser {parser!r} is unknown" if parser else "the row names no log parser"
    raise ImportProblem(
        f"test {failing[0][:80]!r} is not of pytest's form, and {why}: there is no way to grade it; "
        "register a log parser or an importer of your own in a plugin"
    )


def is_pytest(test_id: str) -> bool:
    """Whether an id names a file, maybe classes, and a function, whole."""
    try:
        split_pytest_id(test_id)
    except ValueError:
        return False
    return True


def _looks_like_pytest(test_id: str) -> bool:
    return ".py::" in test_id


def _from_map(draft: Draft, notes: list[str]) -> tuple[list[str], list[str]]:
    wanted = [test_id for test_id, status in draft.expected_map.items() if status.upper() == "PASSED"]
    others = len(draft.expected_map) - len(wanted)
    if others:
        notes.append(f"{others} tests that do not pass with the solution count for nothing")
    if not draft.fail_to_pass:
        notes.append("which tests fail before the solution is not said; all count as failing")
        return wanted, []
    failing = [test_id for test_id in wanted if test_id in set(draft.fail_to_pass)]
    return failing, [test_id for test_id in wanted if test_id not in set(failing)]


def _facts(
    report: str, failing: Sequence[str], passing: Sequence[str], usable: Callable[[str], bool], notes: list[str]
) -> dict[str, Any]:
    kept = [list(filter(usable, ids)) for ids in (failing, passing)]
    for name, ids, usable_ids in zip(("FAIL_TO_PASS", "PASS_TO_PASS"), (failing, passing), kept, strict=True):
        if left_out := len(ids) - len(usable_ids):
            bad = next(test_id for test_id in ids if not usable(test_id))
            notes.append(f"{left_out} ids of {name} left out, cut off or of another form, e.g. {bad[:60]!r}")
    return {"report": report, "fail_to_pass": kept[0], "pass_to_pass": kept[1]}


def _test_files(draft: Draft) -> list[str]:
    """The Python files that the test patch changes or adds."""
    paths = [change.new for change in parse_patch(draft.test_patch, "test_patch") if change.new]
    return list(dict.fromkeys(path for path in paths if path.endswith(".py")))


def _django_labels(draft: Draft) -> list[str]:
    """The test modules that the test patch changes, as Django's runner calls them."""
    return [path.removeprefix("tests/").removesuffix(".py").replace("/", ".") for path in _test_files(draft)]


def _known_parsers() -> set[str]:
    from harness.verifier.log_parsers import LOG_PARSERS  # which imports the pool

    return set(LOG_PARSERS)
