"""Trials whose tokens are a real conversation's: an oracle's answers, captured by the real proxy."""

from pathlib import Path
from typing import Any

from support.tiny import tiny_tokenizer

from harness.demonstrations import Oracle
from harness.patch import Patch
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.scaffolds.base import Transcript
from harness.scaffolds.client import ChatClient
from harness.trial import TrialResult, TrialSpec
from harness.verifier.verdict import Status, Verdict
from tasks.trial_files import store_trial, store_verdict
from trainer.rollout import Outcome, Sampling


def tiny_codec(**changes: Any) -> ChatCodec:
    """The codec of the tiny tokenizer."""
    return ChatCodec(tiny_tokenizer(**changes))


async def write_spoken_trial(
    folder: Path,
    task_id: str = "fix-add",
    answers: tuple[str, ...] = ("so",),
    status: Status | None = Status.PASSED,
    task_path: Path = Path("/pool/fix-add"),
    codec: ChatCodec | None = None,
) -> Path:
    """A trial of `task_id` in `folder`, named after its session, in which the policy gave `answers`; graded or not."""
    codec = codec or tiny_codec()
    oracle, session_id = Oracle(codec), folder.name
    oracle.teach(session_id, answers)
    spec = TrialSpec(session_id, f"round/{task_id}", task_id, task_path, 1, Sampling())
    transcript = Transcript()
    async with ProxyServer(oracle, codec, 4096) as proxy:
        session = proxy.open_session(session_id, spec.sampling)
        async with ChatClient(session) as client:
            for _ in answers:
                transcript.say("user", f"mend {task_id}")
                transcript.say("assistant", (await client.complete(transcript.messages)).text)
    rollouts = session.capture.rollouts(
        "longest", session_id=session_id, task_id=task_id, group_id=spec.group_id, step=1, outcome=Outcome.COMPLETED
    )
    segments = session.capture.segments
    result = TrialResult(spec, Outcome.COMPLETED, rollouts, segments, Patch(), transcript, "edit")
    store_trial(folder, result)
    if status is not None:
        store_verdict(folder, Verdict(float(status is Status.PASSED), status, "said so"))
    return folder
