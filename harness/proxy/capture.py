"""The captured tokens of one session: what the policy was shown, and what it sampled, id for id."""

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.proxy.codec import ChatCodec
from harness.proxy.conversation import ChatMessage, Tool
from harness.proxy.matching import Boundary, Node, find, message_keys, tools_digest
from harness.proxy.segment import Segment, Turn, as_ids
from harness.proxy.threads import Threads
from trainer.rollout import Generation, Outcome, Rollout

Select = Literal["longest", "all", "main"]
"""Which segments of a trial are trained: the one with most sampled tokens, all, or those of the main thread."""

_FRAME_CHARS = 50
"""What a template prints around a message or a call, about."""


class CaptureError(RuntimeError):
    """The capture was used out of order, or handed an answer that cannot be trained on."""


class Request:
    """A request as the capture compares it."""

    def __init__(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), thinking: bool | None = None
    ) -> None:
        self.messages = tuple(messages)
        self.tools = tuple(tools)
        self.thinking = thinking
        self.tools_digest = tools_digest(tools)
        self.keys = [message_keys(message) for message in messages]

    def repeats(self, other: "Request") -> bool:
        """Whether it is the same request once more."""
        return self.tools_digest == other.tools_digest and self.keys == other.keys


@dataclass(frozen=True)
class _Match:
    """What a request builds on. `boundary` is None for a conversation with nothing captured."""

    boundary: Boundary | None
    extends: bool
    tools_changed: bool
    duplicate: bool


@dataclass(eq=False)
class OpenTurn:
    """A request on its way to the policy; it becomes part of a segment only when it is answered.

    `prompt`, empty until it is rendered, is what the policy is shown; `reused` tokens of it were captured before, and
    from `delta_start` on stands what the request added. `closed` is set when the turn ends or is aborted.
    """

    request: Request
    match: _Match
    prompt: "array[int]" = field(default_factory=lambda: array("i"))
    reused: int = 0
    delta_start: int = 0
    head_length: int = 0
    started: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=time.time)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def head_messages(self) -> int:
        """Number of messages at the beginning that are rendered whole, or were."""
        boundary = self.match.boundary
        return boundary.segment.head_messages if boundary else len(self.request.messages)

    @property
    def chars_to_render(self) -> int:
        """About how much text becomes tokens: what costs time. Empty messages cost the template some, too."""
        request = self.request
        head = request.messages[: self.head_messages] if self.match.tools_changed else ()
        tools = len(repr(request.tools)) if self.match.boundary is None or self.match.tools_changed else 0
        return tools + sum(map(_chars, head)) + self.new_chars

    @property
    def new_messages(self) -> tuple[ChatMessage, ...]:
        """The messages that the capture does not hold yet."""
        boundary = self.match.boundary
        return self.request.messages[boundary.known :] if boundary else self.request.messages

    @property
    def new_chars(self) -> int:
        """About how much text the capture would hold besides."""
        return sum(map(_chars, self.new_messages))

    @property
    def new_tokens(self) -> int:
        """Tokens of the rendered prompt that the capture would hold besides; a new segment has copies of its own."""
        return len(self.prompt) - (self.reused if self.match.extends else 0)


class Capture:
    """Turns the requests of one session into prompts, and their answers into trainable token sequences.

    A request whose messages continue a captured conversation extends that segment: its prompt is the captured ids plus
    the delta. One that leaves a captured conversation at an earlier turn (an edited history, a retry of a request that
    was answered) begins a new segment with the captured ids up to there, verbatim; they are trained where they were
    sampled, once. One with other tools keeps all captured ids but those of the head, which names the tools. Any other
    request opens a segment with its own true context.

    Several turns may be open, but not two that would extend the same segment, nor two of the same request; whoever
    begins a turn waits for its `blocker` first. A turn that is aborted leaves no trace.
    """

    def __init__(self, codec: ChatCodec) -> None:
        self.segments: list[Segment] = []
        self.open_turns: set[OpenTurn] = set()
        self.counts: Counter[str] = Counter()
        """Of answered requests: `duplicate_requests` were answered before, `tools_changed` came with other tools, and
        `divergences` rewrote the conversation. `reused_prefixes` of these kept `reused_tokens` captured ids.
        `unreadable_tool_calls` are the policy's."""
        self.held_chars = 0
        """About how much text the segments' turns hold."""
        self._codec = codec
        self._threads = Threads()
        self._roots: dict[str, Node] = {}

    @property
    def num_turns(self) -> int:
        """Number of answers in all segments."""
        return sum(segment.num_turns for segment in self.segments)

    @property
    def held_tokens(self) -> int:
        """Number of tokens of all segments."""
        return sum(len(segment.token_ids) for segment in self.segments)

    def is_main(self, request: Request) -> bool:
        """Whether `request` belongs to the agent's own conversation, as far as one can tell by now."""
        return self._threads.is_main(request.messages, bool(request.tools))

    def blocker(self, request: Request) -> OpenTurn | None:
        """The open turn that has to close before `request` can begin; None if there is none."""
        match = self._match(request)
        for turn in self.open_turns:
            if match.extends and _extended(turn.match) is _extended(match):
                return turn
            if turn.request.repeats(request):
                return turn
        return None

    def open_turn(self, request: Request) -> OpenTurn:
        """Open a turn for `request`, to be rendered next.

        Raises:
            CaptureError: another open turn has to close first.
        """
        if self.blocker(request) is not None:
            raise CaptureError("a turn is open that this request has to wait for; end or abort it first")
        turn = self.draft(request)
        self.open_turns.add(turn)
        return turn

    def draft(self, request: Request) -> OpenTurn:
        """A turn that may be rendered, to see how long its prompt is, but not ended."""
        return OpenTurn(request, self._match(request))

    def render(self, turn: OpenTurn) -> None:
        """Make the prompt of a turn. What this reads does not change meanwhile, so another thread may do it.

        Raises:
            CodecError: the chat template refuses the messages.
        """
        request, boundary = turn.request, turn.match.boundary
        if boundary is None:
            turn.prompt = self._head(turn)
            turn.head_length = len(turn.prompt)
            return
        segment, last = boundary.segment, boundary.segment.turns[boundary.turn]
        if turn.match.tools_changed:
            prompt = self._head(turn)
            turn.head_length = len(prompt)
            prompt.extend(segment.token_ids[segment.head_length : last.answer_end])
            turn.reused = len(prompt) - turn.head_length
        else:
            prompt = segment.token_ids[: last.answer_end]
            turn.reused, turn.head_length = len(prompt), segment.head_length
        turn.delta_start = len(prompt)
        sampled = segment.token_ids[last.answer_start : last.answer_end]
        new = request.messages[boundary.known :]
        prompt.extend(as_ids(self._codec.encode_delta(last.answer, new, sampled, request.tools, request.thinking)))
        turn.prompt = prompt

    def begin_turn(self, request: Request) -> OpenTurn:
        """Open a turn and render it at once.

        Raises:
            CodecError: the chat template refuses the messages.
            CaptureError: another open turn has to close first.
        """
        turn = self.open_turn(request)
        try:
            self.render(turn)
        except BaseException:
            self.abort_turn(turn)
            raise
        return turn

    def end_turn(
        self, turn: OpenTurn, generation: Generation, answer: ChatMessage, *, unreadable: bool = False
    ) -> Turn:
        """Record the answer to an open turn; `answer` is what the client is told.

        Raises:
            CaptureError: the turn is not open, or the generation is aborted or empty.
        """
        if turn not in self.open_turns or not turn.prompt:
            raise CaptureError("this turn is not open, or was not rendered")
        if not isinstance(generation, Generation):
            raise CaptureError(f"the policy answered with {type(generation).__name__}, not with a Generation")
        if generation.finish_reason == "abort":
            raise CaptureError("an aborted generation is not part of a trajectory; abort the turn instead")
        if not generation.token_ids:
            raise CaptureError("the policy answered with no tokens; an answer has at least its end-of-sequence token")
        boundary, request, sampled = turn.match.boundary, turn.request, as_ids(generation.token_ids)
        before = boundary.segment.turns[boundary.turn] if boundary else None
        if boundary and turn.match.extends:
            segment = boundary.segment
            if len(segment.token_ids) != turn.reused:
                raise CaptureError("the segment grew while its turn was open; the prompt sent is no longer its prefix")
            given = turn.prompt[turn.reused :]
        else:
            segment, given = self._new_segment(turn), turn.prompt
        self.abort_turn(turn)
        self._count(turn, unreadable)
        segment.append(given, sampled, generation)
        called_none = bool(request.tools) and not answer.get("tool_calls")
        silent = before.answers_without_tool if before else 0
        record = Turn(
            messages_added=turn.new_messages,
            answer=answer,
            prompt_start=turn.delta_start,
            answer_start=len(turn.prompt),
            answer_end=len(segment.token_ids),
            finish_reason=generation.finish_reason,
            started_at=turn.started_at,
            generate_seconds=time.monotonic() - turn.started,
            gap_seconds=max(0.0, turn.started_at - before.ended_at) if before else None,
            tools_digest=request.tools_digest,
            unreadable_tool_call=unreadable,
            answers_without_tool=silent + 1 if called_none else (silent if not request.tools else 0),
        )
        assert record.answer_end - record.answer_start == len(sampled), "prompt and answer do not add up"
        segment.turns.append(record)
        self.held_chars += turn.new_chars + _chars(answer)
        self._index(turn, segment, answer)
        return record

    def abort_turn(self, turn: OpenTurn) -> None:
        """Forget an open turn; one that is closed already is left as it is."""
        self.open_turns.discard(turn)
        turn.closed.set()

    def rollouts(
        self, select: Select, *, session_id: str, task_id: str, group_id: str, step: int, outcome: Outcome
    ) -> list[Rollout]:
        """The selected segments as rollouts, in the order in which they were opened; none when nothing was sampled.

        Of the longest, the later of equals is taken. `num_turns` counts a segment's own answers, `num_segments` all
        segments of the session.

        Raises:
            RolloutError: the tokens break an invariant of the record.
        """
        return [
            Rollout(
                session_id=session_id,
                task_id=task_id,
                group_id=group_id,
                step=step,
                outcome=outcome,
                token_ids=tuple(segment.token_ids),
                loss_mask=tuple(segment.loss_mask),
                logprobs=tuple(segment.logprobs),
                weight_versions=tuple(segment.weight_versions),
                prompt_length=segment.prompt_length,
                num_turns=segment.num_turns,
                num_segments=len(self.segments),
                segment=segment.index,
                routed_experts=segment.routed_experts.data if segment.routed_experts else None,
                routing_shape=segment.routed_experts.shape if segment.routed_experts else None,
            )
            for segment in self._selected(select)
        ]

    def _selected(self, select: Select) -> list[Segment]:
        match select:
            case "all":
                return self.segments
            case "main":
                return [segment for segment in self.segments if segment.thread == "main"]
            case "longest":
                longest = max(reversed(self.segments), key=lambda segment: segment.num_sampled, default=None)
                return [longest] if longest else []

    def _match(self, request: Request) -> _Match:
        boundary, duplicate = find(self._roots.get(request.tools_digest, Node()), request.keys)
        with_other_tools = False
        for tools, root in self._roots.items():
            if tools != request.tools_digest:
                # Where more of the conversation was captured, more of it is kept as it was sampled.
                other, _ = find(root, request.keys)
                if other and (boundary is None or other.known > boundary.known):
                    boundary, with_other_tools = other, True
        extends = boundary is not None and boundary.extendable and not with_other_tools
        return _Match(boundary, extends, with_other_tools, duplicate)

    def _head(self, turn: OpenTurn) -> "array[int]":
        request, messages = turn.request, turn.request.messages[: turn.head_messages]
        return as_ids(self._codec.encode_prompt(messages, request.tools, request.thinking))

    def _new_segment(self, turn: OpenTurn) -> Segment:
        boundary, messages = turn.match.boundary, turn.request.messages
        known_thread = self._threads.find(messages) is not None
        answered = any(message["role"] == "assistant" for message in messages)
        # A sub-agent's first request may bring examples; answers in a known thread should be captured ones.
        explained = turn.match.duplicate or turn.match.tools_changed
        self.counts["divergences"] += known_thread and answered and not explained
        segment = Segment(
            index=len(self.segments),
            threads=self._threads,
            thread_number=self._threads.note(messages, bool(turn.request.tools)),
            prompt_length=len(turn.prompt),
            head_length=turn.head_length,
            head_messages=turn.head_messages,
            parent=boundary.segment.index if boundary else None,
            parent_turn=boundary.turn if boundary else None,
        )
        self.segments.append(segment)
        return segment

    def _count(self, turn: OpenTurn, unreadable: bool) -> None:
        if turn.match.boundary is not None and not turn.match.extends:
            self.counts["reused_prefixes"] += 1
            self.counts["reused_tokens"] += turn.reused
        self.counts["tools_changed"] += turn.match.tools_changed
        self.counts["duplicate_requests"] += turn.match.duplicate
        self.counts["unreadable_tool_calls"] += unreadable

    def _index(self, turn: OpenTurn, segment: Segment, answer: ChatMessage) -> None:
        boundary, keys = turn.match.boundary, turn.request.keys
        if boundary is None or turn.match.tools_changed:
            node = self._roots.setdefault(turn.request.tools_digest, Node()).grow(keys)
        else:
            node = boundary.node.grow(keys[boundary.known :])
        node.add_answer(message_keys(answer), segment)


def _chars(message: ChatMessage) -> int:
    said = len(message["content"]) + len(message.get("reasoning", ""))
    named = len(message.get("tool_call_id", "")) + len(message.get("name", ""))
    calls = message.get("tool_calls", [])
    called = sum(_FRAME_CHARS + len(call["id"]) + len(call["name"]) + len(call["arguments"]) for call in calls)
    return _FRAME_CHARS + said + named + called


def _extended(match: _Match) -> Segment | None:
    return match.boundary.segment if match.boundary and match.extends else None
