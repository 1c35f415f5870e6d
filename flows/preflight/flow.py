"""The checks as a Prefect flow, for whoever schedules runs: it fails where a run must not start."""

import asyncio
from pathlib import Path
from typing import Any

from prefect import flow

from flows.config import RunConfig
from flows.environment import default_root
from flows.preflight.facts import Facts
from flows.preflight.findings import Level
from flows.preflight.registry import Cost
from flows.preflight.run import PreflightError, run_checks


@flow(name="preflight", flow_run_name="preflight-{config.project}-{config.experiment}")
async def preflight_flow(config: RunConfig, root: Path | None = None) -> list[dict[str, Any]]:
    """Make all checks.

    Raises:
        PreflightError: one of them is FATAL.
    """
    facts = Facts(config, (root or default_root()).resolve())
    findings = await asyncio.to_thread(lambda: list(run_checks(facts, Cost.TRIAL)))
    reasons = [finding.message for finding in findings if finding.level is Level.FATAL]
    if reasons:
        raise PreflightError("\n".join(reasons))
    return [finding.to_json() for finding in findings]
