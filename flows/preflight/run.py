"""Makes the checks: all that `testgrad check` wants, or the cheap ones before a run trains."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from flows.config import RunConfig
from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, Level, fatal
from flows.preflight.registry import CHECKS, Check, Cost


class PreflightError(ValueError):
    """A run that must not start; the message has a line for each reason."""


def run_checks(facts: Facts, most: Cost = Cost.TRIAL, only: Iterable[str] = ()) -> Iterator[Finding]:
    """Findings of the registered checks up to the cost `most`, as they are made; `only` those named, if any are.

    A check that breaks is a finding itself: what could not be looked at is not well.
    """
    from flows.preflight import checks  # noqa: F401  (registers them)

    names = set(only)
    for check in CHECKS.values():
        if check.cost <= most and (not names or check.name in names):
            yield from _made(check, facts)


def _made(check: Check, facts: Facts) -> Iterator[Finding]:
    try:
        for finding in check.function(facts):
            yield replace(finding, check=check.name)
    except Exception as error:
        if os.environ.get("TESTGRAD_DEBUG"):
            raise
        why = f"the check itself failed: {type(error).__name__}: {error}"
        yield replace(fatal("", "", why, "with TESTGRAD_DEBUG=1 it says where"), check=check.name)


def preflight(config: RunConfig, root: Path) -> list[Finding]:
    """What the cheap checks find, before a run trains.

    Raises:
        PreflightError: one of them is FATAL.
    """
    findings = list(run_checks(Facts(config, root), Cost.CHEAP))
    reasons = [finding.message for finding in findings if finding.level is Level.FATAL]
    if reasons:
        raise PreflightError("\n".join(["this run must not start:", *(f"  {reason}" for reason in reasons)]))
    return findings


def summary(findings: Iterable[Finding]) -> str:
    """How many of each level, on one line."""
    counts = Counter(finding.level for finding in findings)
    return ", ".join(f"{counts[level]} {level}" for level in (Level.OK, Level.WARN, Level.FATAL))
