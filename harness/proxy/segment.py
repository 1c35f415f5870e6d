"""A segment: one growing token sequence of a session, and the turns that it is made of."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from harness.proxy.conversation import ChatMessage
from harness.proxy.threads import Threads
from trainer.rollout import NO_VERSION, Generation, Routing

T = TypeVar("T")


def as_ids(ids: Sequence[int]) -> "array[int]":
    """Token ids as a segment keeps them: four bytes each, copied as fast as memory."""
    return array("i", ids)


@dataclass(frozen=True)
class Turn:
    """A request and its answer. `prompt_start`, `answer_start` and `answer_end` are positions in the segment's tokens.

    `messages_added` are those that the request brought beyond what the segment held; `answer` is what the client was
    told. `started_at` is in seconds since the epoch; `gap_seconds` is what passed between the answer before, where
    there is one, and this request: the time of the agent and its tools. `answers_without_tool` counts the answers up to
    this one, itself included, that called none of the tools they were offered.
    """

    messages_added: tuple[ChatMessage, ...]
    answer: ChatMessage
    prompt_start: int
    answer_start: int
    answer_end: int
    finish_reason: str
    started_at: float
    generate_seconds: float
    gap_seconds: float | None
    tools_digest: str
    unreadable_tool_call: bool
    answers_without_tool: int

    @property
    def ended_at(self) -> float:
        """Seconds since the epoch."""
        return self.started_at + self.generate_seconds


@dataclass
class Segment:
    """One growing token sequence: the prompt of its first request, then answers and what came between them.

    A segment that begins with what an earlier one captured has that one's index as `parent`, and the number of the last
    turn that they share as `parent_turn`; those tokens are part of its prompt. Its first `head_length` tokens are what
    was rendered whole, from the first `head_messages` messages.
    """

    index: int
    threads: Threads
    thread_number: int
    prompt_length: int
    head_length: int
    head_messages: int
    parent: int | None = None
    parent_turn: int | None = None
    token_ids: "array[int]" = field(default_factory=lambda: array("i"))
    turns: list[Turn] = field(default_factory=list)
    routed_experts: Routing | None = None
    """Of the newest answer, which covers all tokens before it."""
    _logprobs: "array[float]" = field(default_factory=lambda: array("d"))
    _versions: "array[int]" = field(default_factory=lambda: array("i"))

    @property
    def thread(self) -> str:
        """Whose conversation this is: "main", "sub:<n>" or "hidden:<n>"."""
        return self.threads.label(self.thread_number)

    @property
    def num_turns(self) -> int:
        """Number of answers sampled in this segment."""
        return len(self.turns)

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the policy sampled in this segment."""
        return len(self._logprobs)

    @property
    def loss_mask(self) -> list[int]:
        """1 for each token sampled in this segment, 0 for all others, [tokens]."""
        mask = [0] * len(self.token_ids)
        for turn in self.turns:
            mask[turn.answer_start : turn.answer_end] = [1] * (turn.answer_end - turn.answer_start)
        return mask

    @property
    def logprobs(self) -> list[float]:
        """Log-probability of each token sampled in this segment, NaN for all others, [tokens]."""
        return self._spread(self._logprobs.tolist(), math.nan)

    @property
    def weight_versions(self) -> list[int]:
        """Weight version of each token sampled in this segment, NO_VERSION for all others, [tokens]."""
        return self._spread(self._versions.tolist(), NO_VERSION)

    def append(self, given: "array[int]", sampled: "array[int]", generation: Generation) -> None:
        """Append tokens that were not sampled here, then those of an answer, verbatim."""
        self.token_ids.extend(given)
        self.token_ids.extend(sampled)
        self._logprobs.extend(generation.logprobs)
        self._versions.extend(generation.weight_versions)
        self.routed_experts = generation.routed_experts

    def _spread(self, sampled: list[T], elsewhere: T) -> list[T]:
        values, used = [elsewhere] * len(self.token_ids), 0
        for turn in self.turns:
            length = turn.answer_end - turn.answer_start
            values[turn.answer_start : turn.answer_end] = sampled[used : used + length]
            used += length
        return values
