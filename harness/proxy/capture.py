"""The captured tokens of one session: what the policy was shown, and what it sampled, id for id."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.proxy.codec import ChatCodec, ChatMessage
from trainer.rollout import NO_VERSION, Generation, Outcome, Rollout


class CaptureError(RuntimeError):
    """The capture was used out of order, or handed an answer that cannot be trained on."""


@dataclass
class Segment:
    """One growing token sequence: the prompt of a first request, then answers and what came between them.

    The four lists have one entry a token. `messages` is the conversation that the sequence stands for, which ends with
    the newest answer.
    """

    prompt_length: int
    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    weight_versions: list[int] = field(default_factory=list)
    messages: list[ChatMessage] = field(default_factory=list)
    last_answer: Sequence[int] = ()
    num_turns: int = 0

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(self.loss_mask)

    def append_given(self, ids: Sequence[int]) -> None:
        """Append tokens that the policy did not sample."""
        self.token_ids += ids
        self.loss_mask += [0] * len(ids)
        self.logprobs += [math.nan] * len(ids)
        self.weight_versions += [NO_VERSION] * len(ids)

    def append_sampled(self, generation: Generation) -> None:
        """Append an answer, verbatim."""
        self.token_ids += generation.token_ids
        self.loss_mask += [1] * len(generation.token_ids)
        self.logprobs += generation.logprobs
        self.weight_versions += generation.weight_versions
        self.last_answer = tuple(generation.token_ids)
        self.num_turns += 1


@dataclass(frozen=True)
class _Turn:
    """A request on its way to the policy; it becomes part of a segment only when it is answered."""

    segment: Segment
    length_before: int
    delta: list[int]
    messages: list[ChatMessage]


class Capture:
    """Turns the requests of one session into prompts, and their answers into trainable token sequences.

    A request whose messages continue a captured conversation extends that segment: its prompt is the captured ids plus
    the delta. Any other request opens a new segment with its own true context. One turn is open at a time, and a turn
    that is aborted leaves no trace.
    """

    def __init__(self, codec: ChatCodec) -> None:
        self.segments: list[Segment] = []
        self._codec = codec
        self._turn: _Turn | None = None

    @property
    def num_turns(self) -> int:
        """Number of answers in all segments."""
        return sum(segment.num_turns for segment in self.segments)

    def begin_turn(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Prompt ids for a request with `messages`.

        Raises:
            CodecError: the chat template refuses the messages.
            CaptureError: the previous turn was neither ended nor aborted.
        """
        if self._turn is not None:
            raise CaptureError("a turn is open; end or abort it before the next one begins")
        segment = self._extended_by(messages)
        if segment is None:
            delta = self._codec.encode_prompt(messages)
            segment = Segment(prompt_length=len(delta))
        else:
            known = len(segment.messages)
            delta = self._codec.encode_delta(segment.messages[: known - 1], messages[known:], segment.last_answer)
        self._turn = _Turn(segment, len(segment.token_ids), delta, list(messages))
        return segment.token_ids + delta

    def end_turn(self, generation: Generation, assistant_text: str) -> None:
        """Record the answer to the open turn; `assistant_text` is what the client was told.

        Raises:
            CaptureError: no turn is open, or the generation is aborted or empty.
        """
        turn = self._turn
        if turn is None:
            raise CaptureError("no turn is open to be ended")
        if not isinstance(generation, Generation):
            raise CaptureError(f"the policy answered with {type(generation).__name__}, not with a Generation")
        if generation.finish_reason == "abort":
            raise CaptureError("an aborted generation is not part of a trajectory; abort the turn instead")
        if not generation.token_ids:
            raise CaptureError("the policy answered with no tokens; an answer has at least its end-of-sequence token")
        segment = turn.segment
        if len(segment.token_ids) != turn.length_before:
            raise CaptureError("the segment grew while its turn was open; the prompt sent is no longer its prefix")
        self._turn = None
        segment.append_given(turn.delta)
        segment.append_sampled(generation)
        segment.messages = [*turn.messages, ChatMessage(role="assistant", content=assistant_text)]
        if segment.num_turns == 1:
            self.segments.append(segment)

    def abort_turn(self) -> None:
        """Forget the open turn, if there is one."""
        self._turn = None

    def rollout(self, *, session_id: str, task_id: str, group_id: str, step: int, outcome: Outcome) -> Rollout | None:
        """The segment with most sampled tokens (the later of equals) as a rollout; None when nothing was sampled.

        `num_turns` counts that segment's answers, `num_segments` all segments of the session.

        Raises:
            RolloutError: the tokens break an invariant of the record.
        """
        if not self.segments:
            return None
        chosen = max(reversed(self.segments), key=lambda segment: segment.num_sampled)
        return Rollout(
            session_id=session_id,
            task_id=task_id,
            group_id=group_id,
            step=step,
            outcome=outcome,
            token_ids=tuple(chosen.token_ids),
            loss_mask=tuple(chosen.loss_mask),
            logprobs=tuple(chosen.logprobs),
            weight_versions=tuple(chosen.weight_versions),
            prompt_length=chosen.prompt_length,
            num_turns=chosen.num_turns,
            num_segments=len(self.segments),
        )

    def _extended_by(self, messages: Sequence[ChatMessage]) -> Segment | None:
        # All segments, not only the newest: a sub-agent's requests may come between two of the main conversation.
        for segment in reversed(self.segments):
            known = segment.messages
            if len(messages) > len(known) and all(map(_same_message, known, messages)):
                return segment
        return None


def _same_message(known: ChatMessage, sent: ChatMessage) -> bool:
    if known["role"] != sent["role"]:
        return False
    if known["role"] == "assistant":
        # Clients trim answers before they send them back; the captured ids are the truth in any case.
        return known["content"].strip() == sent["content"].strip()
    return known["content"] == sent["content"]
