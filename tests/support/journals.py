"""A run's journal with trials in it, as run_trials and verify_trials leave one."""

from pathlib import Path
from typing import Any

from support.captures import make_capture

from harness.patch import Patch
from harness.proxy.capture import Select
from harness.scaffolds.base import Transcript
from harness.trial import TrialResult, TrialSpec
from harness.verifier.verdict import Status, Verdict
from tasks.run import RunRef
from tasks.trial_files import StoredTrial, load_trial, store_trial, store_verdict
from trainer.rollout import Outcome, Sampling


def make_run(root: Path, **changes: Any) -> RunRef:
    """A run whose journal is `root/project/experiment`."""
    fields: dict[str, Any] = {
        "project": "project",
        "experiment": "experiment",
        "root": root,
        "nonce": "0123abcd",
        "tracking_uri": f"sqlite:///{root}/mlflow.db",
    }
    return RunRef(**fields | changes)


def make_result(
    session_id: str,
    group_id: str = "step_000001/fix-add",
    outcome: Outcome = Outcome.COMPLETED,
    turns: tuple[tuple[int, ...], ...] | None = ((4, 5),),
    more_segments: tuple[tuple[tuple[int, ...], ...], ...] = (),
    between: tuple[int, ...] = (7,),
    select: Select = "longest",
    **changes: Any,
) -> TrialResult:
    """A trial that ended with `outcome` after these sampled turns; None for a policy that never spoke.

    `more_segments` are the turns of further segments, `between` the tokens that the environment put between turns. An
    infra_error has sampled nothing.
    """
    failed = outcome is Outcome.INFRA_ERROR
    capture = make_capture([turns, *more_segments] if turns is not None and not failed else [], between)
    transcript = Transcript()
    transcript.say("user", "mend it")
    for _ in turns or ():
        transcript.say("assistant", "so")
    spec = TrialSpec(session_id, group_id, "fix-add", Path("/pool/fix-add"), 1, Sampling())
    ids = {"session_id": session_id, "task_id": spec.task_id, "group_id": group_id, "step": spec.step}
    fields: dict[str, Any] = {
        "rollouts": capture.rollouts(select, outcome=outcome, **ids),
        "segments": capture.segments,
        "scaffold": "edit",
        "patch": None if failed else Patch({"solution.py": b"fixed\n"}, (("tests/test_x.py", "a test"),), "+fixed\n"),
        "transcript": transcript,
        "error": "SandboxError: gone" if failed else None,
        "timings": {"agent": 2.0, "sandbox_start": 0.5},
    }
    return TrialResult(spec, outcome, **fields | changes)


def make_verdict(status: Status | str = Status.PASSED, **changes: Any) -> Verdict:
    """A verdict of this status."""
    status = Status(status)
    fields: dict[str, Any] = {"reason": f"it {status}", "tests": {"test_x.T.test": "passed"}, "seconds": 0.25}
    return Verdict(1.0 if status is Status.PASSED else 0.0, status, **fields | changes)


def write_trial(
    run: RunRef, label: str, result: TrialResult, status: Status | str | None = Status.PASSED
) -> StoredTrial:
    """Store a trial, and its verdict unless `status` is None."""
    folder = run.journal.trials_dir(label) / result.spec.session_id
    store_trial(folder, result)
    if status is not None:
        store_verdict(folder, make_verdict(status))
    return load_trial(folder)
