"""Starting the trusted runner of `inside/`, and reading what it reports."""

import dataclasses
import json
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from harness.sandbox import ExecResult, Sandbox
from harness.verifier.graders import base
from harness.verifier.report import Judgement, judge
from harness.verifier.sentinels import SentinelTests

OLDEST_PYTHON = (3, 9)
"""Interpreters that can run what lies in `inside/`."""

_INSIDE = Path(__file__).parents[1] / "inside"
_RUNNER = (_INSIDE / "runner.py").read_bytes()


async def run_trusted(
    sandbox: Sandbox,
    child: str,
    job: Mapping[str, Any],
    limit: float,
    expected: Collection[str],
    sentinels: SentinelTests,
    extra_files: Mapping[str, bytes] | None = None,
) -> tuple[Judgement, ExecResult]:
    """Run `inside/<child>` on `job` and judge its report; `extra_files` are shown beside it in /grader."""
    nonce = secrets.token_hex(16)
    programs = {"runner.py": _RUNNER, child: (_INSIDE / child).read_bytes()}
    await sandbox.mount_read_only("/grader", {**programs, **(extra_files or {})})
    result = await sandbox.exec(
        [sandbox.project_python, "-I", "-S", "-B", "-X", "utf8", "/grader/runner.py", child],
        stdin=json.dumps({"nonce": nonce, "deadline": limit, **job}).encode(),
        timeout=limit + base.GRACE,
    )
    judgement = judge(result, nonce, expected, sentinels.twins)
    return dataclasses.replace(judgement, odds=sentinels.odds), result
