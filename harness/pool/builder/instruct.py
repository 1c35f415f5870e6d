"""The instruction of a task: what the failing tests say of the behaviour, never what was changed."""

import ast
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from harness import syntax
from harness.pool.builder.config import WriterConfig
from harness.pool.builder.runner import TestEnd
from harness.pool.kinds import split_pytest_id

log = logging.getLogger(__name__)

_EXAMPLES = 4
_LONGEST = 300
_TELLING = 10
"""Characters from which on a line of the diff says something by itself."""


@dataclass(frozen=True)
class Report:
    """What may be told: the package, and of some failing tests their names, purposes, assertions and exceptions."""

    package: str
    version: str
    paths: tuple[str, ...]
    failing: int
    passing: int
    examples: tuple["Example", ...]


@dataclass(frozen=True)
class Example:
    """One failing test; a text that is not known, or that would tell too much, is empty."""

    name: str
    purpose: str = ""
    check: str = ""
    result: str = ""


def make_report(
    package: str,
    version: str,
    paths: Sequence[str],
    failing: Mapping[str, TestEnd],
    passing: int,
    tests: Mapping[str, bytes],
    diff: Sequence[str],
) -> Report:
    """The report on the `failing` tests of the hidden files `tests`, without anything of the lines `diff`."""
    examples, seen = [], set[str]()
    for test_id, end in failing.items():
        file, names, parameters = split_pytest_id(test_id)
        name = ".".join(names)
        if name in seen:
            continue
        seen.add(name)
        purpose, check = _of_the_test(tests.get(file, b"").decode("utf-8", "replace"), names, end.line)
        result = _plain(end.detail)
        kept = [text if not leaks(text, diff) else "" for text in (purpose, check, result)]
        examples.append(Example(f"{name}{parameters}" if len(parameters) < 60 else name, *kept))
        if len(examples) == _EXAMPLES:
            break
    return Report(package, version, tuple(paths), len(failing), passing, tuple(examples))


def leaks(text: str, diff: Sequence[str]) -> bool:
    """Whether a line of the diff stands in `text`, however it is spaced."""
    squeezed = _squeeze(text)
    return any(len(line) >= _TELLING and line in squeezed for line in map(_squeeze, diff))


def fixed_wording(report: Report) -> str:
    """The instruction without a model."""
    count = "A test" if report.failing == 1 else f"{report.failing} tests"
    fail = "fails" if report.failing == 1 else "fail"
    lines = [
        f"# {report.package} {report.version} does not behave as it should",
        "",
        f"The repository holds {report.package} {report.version}. {count} of its suite {fail}, {report.passing} pass. "
        "The tests are not in the repository. What they find:",
        "",
    ]
    for example in report.examples:
        lines.append(f"* `{example.name}`" + (f": {example.purpose}" if example.purpose else ""))
        if example.check:
            lines += ["", "  ```python", *(f"  {line}" for line in example.check.splitlines()), "  ```", ""]
        if example.result:
            lines.append(f"  It ends with `{example.result}`." if "`" not in example.result else f"  {example.result}")
    if report.failing > len(report.examples):
        lines.append("* … and others of the kind.")
    lines += ["", _task(report)]
    return "\n".join(lines) + "\n"


async def model_wording(report: Report, writer: WriterConfig, diff: Sequence[str]) -> str | None:
    """The instruction by a model that gets the report; None if it gives none that can be used.

    An answer that hits on a line of the diff is not used, though the model was not told the diff.
    """
    facts = fixed_wording(report)
    messages = [
        {"role": "system", "content": "You write issues for a bug tracker: plain, exact, no guesses about the cause."},
        {
            "role": "user",
            "content": "Write the issue that a user of the library would file, from this report of failing tests. "
            "Say what was expected and what happened. Do not name tests, do not suggest a fix.\n\n" + facts,
        },
    ]
    async with httpx.AsyncClient(timeout=writer.timeout_sec) as client:
        for _ in range(writer.attempts):
            try:
                answer = await client.post(
                    f"{writer.url.rstrip('/')}/chat/completions",
                    json={"model": writer.model, "messages": messages, "temperature": 0.7},
                    headers={"Authorization": f"Bearer {writer.key}"},
                )
                answer.raise_for_status()
                text = str(answer.json()["choices"][0]["message"]["content"]).strip()
            except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
                log.warning("writer %s gave no answer: %s", writer.url, error)
                continue
            if len(text) >= 40 and not leaks(text, diff):
                return f"{text}\n\n{_task(report)}\n"
    return None


def _task(report: Report) -> str:
    path = f" Its code runs with PYTHONPATH={':'.join(report.paths)}." if report.paths else ""
    return (
        "Find the cause in the package's source and mend it there, so that the whole suite passes: what passes now "
        f"must still pass.{path} Changes to tests or to the settings of the test run are not taken."
    )


def _of_the_test(source: str, names: Sequence[str], line: int) -> tuple[str, str]:
    """The first sentence of a test's docstring, and the statement at `line` of its file."""
    try:
        body: Sequence[ast.stmt] = syntax.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return "", ""
    node: ast.stmt | None = None
    for name in names:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        node = next((n for n in body if isinstance(n, kinds) and n.name == name), None)
        if node is None:
            return "", ""
        body = node.body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    purpose = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())[:_LONGEST]
    simple = ast.Assert | ast.Expr | ast.Assign | ast.Return
    inner = [n for n in ast.walk(node) if isinstance(n, simple) and n.lineno <= line <= (n.end_lineno or n.lineno)]
    check = ast.unparse(inner[-1]) if inner else ""
    return purpose, check if len(check) <= 2 * _LONGEST else ""


def _plain(detail: str) -> str:
    """The first line of an exception, without what differs from run to run."""
    line = next((text.strip() for text in detail.splitlines() if text.strip()), "")
    line = re.sub(r"0x[0-9a-f]{6,}", "0x…", line)
    line = re.sub(r"/workspace/|/tmp/run\d+/", "", line)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", "", text)
