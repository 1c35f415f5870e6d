"""R2E-Gym: no lists of tests but the status of each, and whole files instead of patches.

`expected_output_json` gives statuses by Class.test, without the file; `execution_result_content` holds the test files
and what they said before the commit, `parsed_commit_content` each changed file before and after.
"""

import re
from collections.abc import Mapping
from typing import Any

from harness.pool.importers.base import register_rows
from harness.pool.importers.draft import Draft
from harness.pool.importers.named_tests import find_tests
from harness.pool.importers.patches import safe_path
from harness.pool.importers.swe_bench import extras, image_of
from harness.pool.importers.values import ImportProblem, Row

FOLDER = "r2e_tests"
PYTHON = "/testbed/.venv/bin/python"
"""The interpreter of its images, in the repository's own folder; the tests lie in the root folder."""

_COLOUR = re.compile(r"(?:\x1b|\\u001b|\\x1b)\[\d+m")
_TAG = re.compile(r"\[/?ISSUE\]")
_RESULT = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (?:\S+?::)?(.+)")
_TEST_PATH = re.compile(r"(^|/)(tests?/|test_[^/]*$|[^/]*_test\.py$|conftest\.py$)")


@register_rows("r2e_gym")
def r2e_gym(row: Row) -> Draft:
    """R2E-Gym, Subset and Lite: a status for each test (expected_map)"""
    commit = row.text("commit_hash")
    repo = row.text("repo_name", "repo")
    execution, parsed = row.table("execution_result_content"), row.table("parsed_commit_content")
    hidden = _hidden_files(execution)
    statuses = {_name(key): str(value) for key, value in row.table("expected_output_json").items()}
    if not statuses:
        raise ImportProblem("expected_output_json is empty: nothing says how the tests must end")
    ids, notes = find_tests(statuses, hidden)
    expected = {test_id: statuses[name] for name, test_id in ids.items()}
    before = execution.get("old_commit_res_stdout")
    passed_before = _passed(before) if isinstance(before, str) and "short test summary info" in before else None
    failing = []
    if passed_before is not None:
        failing = [i for name, i in ids.items() if statuses[name] == "PASSED" and name not in passed_before]
        if not failing:
            raise ImportProblem("FAIL_TO_PASS is empty: every expected test passes before the solution")
    return Draft(
        instance_id=row.text("instance_id", default="") or f"{repo.rpartition('/')[2]}__{commit}",
        instruction=_TAG.sub("", row.text("problem_statement")).strip(),
        repo=repo,
        base_commit=_base(parsed.get("old_commit_hash"), commit),
        image=image_of(row, None),
        python=PYTHON,
        hidden_places=(f"/{FOLDER}",),
        solution_files=_solution_files(parsed),
        hidden_files=hidden,
        fail_to_pass=failing,
        expected_map=expected,
        extra=extras(row),
        notes=tuple(notes),
    )


def _hidden_files(execution: Mapping[str, Any]) -> dict[str, str]:
    names, codes = execution.get("test_file_names"), execution.get("test_file_codes")
    if not isinstance(names, list) or not isinstance(codes, list) or len(names) != len(codes) or not names:
        raise ImportProblem("execution_result_content holds no test_file_names with as many test_file_codes")
    paths = [safe_path(str(name)) for name in names]
    return {
        path if path.startswith(f"{FOLDER}/") else f"{FOLDER}/{path}": str(code)
        for path, code in zip(paths, codes, strict=True)
    }


def _solution_files(parsed: Mapping[str, Any]) -> dict[str, str | None]:
    files: dict[str, str | None] = {}
    diffs = parsed.get("file_diffs") or []
    for diff in diffs if isinstance(diffs, list) else []:
        header = _table(_table(diff).get("header"))
        path = _table(header.get("file")).get("path")
        if not isinstance(path, str):
            raise ImportProblem("parsed_commit_content has a change without header.file.path")
        if _TEST_PATH.search(path) or diff.get("is_binary_file") or diff.get("binary_line"):
            continue
        after = diff.get("new_file_content")
        gone = "deleted" in str(header.get("misc_line") or "")
        files[safe_path(path)] = None if gone or after is None else str(after)
    if not files:
        raise ImportProblem("parsed_commit_content changes no file but tests: there is no solution")
    return files


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _base(old: Any, commit: str) -> str:
    """The commit before: R2E-Gym writes it as COMMIT^."""
    return old if isinstance(old, str) and old else f"{commit}^"


def _name(key: str) -> str:
    """A key without colours, and without the reason that may follow it."""
    return _COLOUR.sub("", key).split(" - ")[0].strip()


def _passed(log: str) -> set[str]:
    """Tests that passed, by Class.test, from pytest's short summary."""
    summary = _COLOUR.sub("", log).rpartition("short test summary info")[2]
    found = set()
    for line in summary.splitlines():
        match = _RESULT.match(line)
        if match and match[1] == "PASSED":
            found.add(_name(".".join(line.split("::")[1:])))
    return found
