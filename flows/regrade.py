"""Grade a finished evaluation's patches again, with the run's own sandbox, verifier and budgets."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from flows.config import RunConfig
from flows.environment import tracking_uri
from flows.evaluations import EvaluationError
from harness.sandbox import require_isolation
from tasks.journal import Journal, read_json
from tasks.regrade import Regraded, regrade
from tasks.run import RunRef


def open_finished(root: Path, name: str) -> RunRef:
    """The run `project/experiment` as it is, its journal unchanged.

    Raises:
        EvaluationError: there is no such run.
    """
    project, _, experiment = name.partition("/")
    journal = Journal(root / project / experiment)
    stored = read_json(journal.root / "config.json") if project and experiment else None
    if stored is None:
        raise EvaluationError(f"there is no run {name} in {root}; name it as project/experiment")
    return RunRef(
        project=project, experiment=experiment, root=root, nonce=stored["nonce"], tracking_uri=tracking_uri(root)
    )


async def regrade_evaluation(
    run: RunRef, step: int, config: RunConfig, concurrency: int, tell: Callable[[int, int], None]
) -> Regraded:
    """`tasks.regrade.regrade` of the run's evaluation after `step`.

    Raises:
        SandboxUnavailable: patches cannot be isolated here; the message names the mend.
    """
    await asyncio.to_thread(require_isolation, config.sandbox)
    return await regrade(
        run,
        step,
        config.sandbox,
        config.verifier,
        config.budgets,
        concurrency=concurrency,
        infra_attempts=config.rollout.infra_attempts,
        tell=tell,
    )
