"""Can the grading be gamed or the sandbox be left? All attacks of the test suite, and honest work, on each backend.

An attack that earns a reward or leaves evidence of a breach has succeeded. One is misclassified when it is excluded as
the machine's fault, or ends as something else than it must, and so is an honest solution that is called tampered.
The kubernetes backend runs on a fake cluster, whose node runs real processes but has no kubelet's limits.
"""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

from bench.output import arguments, report, say, scratch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the attacks are the test suite's own

_QUICK = 4
"""Of a kind with --quick."""


def main() -> None:
    """Try all attacks, then all honest solutions."""
    options = arguments(__doc__ or "")
    logging.disable(logging.CRITICAL)  # hostile trials are loud, and each is looked at
    with scratch(options.root) as root:
        rows, figures = asyncio.run(_measure(root, options.quick))
    report("attacks", ["kind", "attacks", "succeeded", "misclassified"], rows, figures)


async def _measure(root: Path, quick: bool) -> tuple[list[list[object]], dict[str, float]]:
    from support.attack_task import grading_kinds, write_attacked
    from support.attacks import BACKENDS, attempt, backend, solve

    tried: Counter[str] = Counter()
    succeeded: Counter[str] = Counter()
    misclassified: Counter[str] = Counter()
    honest = honest_failures = 0
    for name in BACKENDS:
        async with AsyncExitStack() as stack:
            config = await _enter(stack, backend(name))
            if config is None:
                continue
            for kind in grading_kinds():
                place = root / f"{config.backend}-{kind}"
                tasks = {history: write_attacked(place / str(history), kind, history) for history in (False, True)}
                say(f"{config.backend}, tests by {kind}")
                for attack in _attacks(kind, name, quick):
                    evidence = await attempt(attack, tasks[attack.history], config)
                    tried[attack.kind] += 1
                    succeeded[attack.kind] += evidence.succeeded
                    misclassified[attack.kind] += evidence.misclassified
                    if evidence.succeeded or evidence.misclassified or evidence.faults:
                        say(f"  {evidence}")
                for solution in _honest(quick):
                    evidence = await solve(solution, tasks[False], config)
                    honest += 1
                    honest_failures += evidence.misclassified
                    if evidence.misclassified:
                        say(f"  {evidence}")
    rows: list[list[object]] = [[kind, tried[kind], succeeded[kind], misclassified[kind]] for kind in tried]
    figures: dict[str, float] = {
        "attacks": tried.total(),
        "succeeded": succeeded.total(),
        "misclassified": misclassified.total(),
        "honest": honest,
        "honest_failures": honest_failures,
    }
    return [*rows, ["honest solutions", honest, "", honest_failures]], figures


async def _enter(stack: AsyncExitStack, context: AbstractAsyncContextManager[Any]) -> Any:
    """What the backend's context gives; None, said aloud, where it cannot be had."""
    import pytest

    try:
        return await stack.enter_async_context(context)
    except pytest.skip.Exception as reason:
        say(f"NOT TRIED: {reason}")
        return None


def _attacks(report_kind: str, backend: str, quick: bool) -> Iterator[Any]:
    from support.attack_tables.table import ATTACKS
    from support.attacks import unproven

    seen: Counter[str] = Counter()
    for attack in ATTACKS:
        if report_kind in attack.reports and not unproven(attack, backend):
            seen[attack.kind] += 1
            if not quick or seen[attack.kind] <= _QUICK:
                yield attack


def _honest(quick: bool) -> list[Any]:
    from support.attack_tables.table import HONEST

    return HONEST[:_QUICK] if quick else HONEST


if __name__ == "__main__":
    main()
