"""A policy that was told what to answer."""

from collections import deque
from collections.abc import Sequence

from harness.demonstrations.base import DemonstrationError
from harness.proxy.codec import ChatCodec
from trainer.rollout import Generation, Sampling


class Oracle:
    """Says what each session was taught, as an engine would have sampled it: its ids, up to the end of the turn.

    It has no other answer, so that the log-prob of each token is that of certainty, 0. Weight versions are 0.
    """

    def __init__(self, codec: ChatCodec) -> None:
        self._codec = codec
        self._answers: dict[str, deque[str]] = {}

    def teach(self, session_id: str, answers: Sequence[str]) -> None:
        """Let a session hear `answers`, one a turn."""
        self._answers[session_id] = deque(answers)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
        """The session's next answer; see `trainer.rollout.Policy`.

        Raises:
            DemonstrationError: the scaffold asks for more answers than were taught, or would stop in the midst of one.
        """
        if not self._answers.get(session_id):
            raise DemonstrationError("the scaffold asks on after the last answer of its demonstration")
        text = self._answers[session_id].popleft()
        if any(stop in text for stop in sampling.stop):
            raise DemonstrationError(f"the answer holds one of the stop strings {sampling.stop}")
        ids = self._codec.encode_answer(text)
        said = ids[: sampling.max_tokens]
        finish = "stop" if len(said) == len(ids) else "length"
        return Generation(said, [0.0] * len(said), [0] * len(said), finish)  # type: ignore[arg-type]

    def release(self, session_id: str) -> None:
        """Forget the session."""
        self._answers.pop(session_id, None)
