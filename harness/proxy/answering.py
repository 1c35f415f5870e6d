"""From a call to its answer: waiting for its turn, sampling, reading what was sampled, and capturing it."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from harness.proxy.capture import Capture, OpenTurn, Request
from harness.proxy.codec import ChatCodec, CodecError
from harness.proxy.conversation import ChatMessage
from harness.proxy.session import Session
from harness.proxy.surfaces.base import Answer, Call, RequestError
from harness.proxy.tool_calls import Reading, ToolReader
from harness.turns import turn_of_loop
from trainer.rollout import Generation, Policy, Sampling

T = TypeVar("T")

_CANCEL_GRACE_SECONDS = 10.0
_LONG_TEXT = 20_000
"""Characters from which on tokenizing is given to a thread: all sessions would stand still meanwhile."""
_LONG_ANSWER = 2000
"""Likewise from which on an answer is read for calls in a thread: over one that repeats itself, as policies in training
do, some of the parsers take time that grows with the square of its length."""
_MAX_STOPS = 32
_MAX_STOP_CHARS = 500
"""Of the stop strings of a request: the engine looks for each of them after each token."""


class PolicyFailure(RuntimeError):
    """The serving side broke; nothing the agent did can cause it."""


class WindowExceeded(Exception):
    """Raised by a policy that counts tokens otherwise than the proxy does: a prompt does not fit in its window."""


class Answerer:
    """Answers the calls of sessions, whichever API they came by.

    `window` is the policy's context length in tokens: prompt and answer together. Without `tools` no answer is read
    for tool calls or thinking: it is text.
    """

    def __init__(self, policy: Policy, codec: ChatCodec, window: int, tools: ToolReader | None) -> None:
        if window < 2:
            raise ValueError(f"window is {window} tokens; it must hold at least one prompt and one answer token")
        self._policy = policy
        self._codec = codec
        self._window = window
        self._tools = tools
        # Apart from the threads that everything else shares, as one may be at work for minutes.
        self._readers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="tool-reader")

    async def answer(self, session: Session, call: Call) -> Answer:
        """The answer to `call`, captured. When this is cancelled, or raises, the session's tokens are as before.

        Raises:
            RequestError: the session does not serve this call (any more).
            PolicyFailure: the serving side broke.
        """
        request = Request(call.messages, call.tools, call.thinking)
        await _wait_for_turn(session, request)
        turn = session.capture.open_turn(request)
        try:
            await _render(session.capture, turn)
            if session.closed:
                raise unauthorized()
            sampling = self._sampling(session, call, turn)
            generation = await self._generate(session, turn, sampling)
            await turn_of_loop()
            text, stop_string = self._codec.decode_answer(generation, sampling.stop)
            reading = await self._read(text, generation, call)
            if session.closed:
                raise unauthorized()
            record = session.capture.end_turn(turn, generation, _message(reading), unreadable=reading.unreadable)
        finally:
            session.capture.abort_turn(turn)
        if 0 < session.no_tool_limit <= record.answers_without_tool:
            session.no_tool_end = True
        return Answer(
            text=reading.text,
            reasoning=reading.reasoning,
            tool_calls=reading.calls,
            finish="tool_calls" if reading.calls else "length" if generation.finish_reason == "length" else "stop",
            stop_string=stop_string,
            prompt_tokens=len(turn.prompt),
            cached_tokens=turn.reused,
            generation=generation,
        )

    async def count_tokens(self, session: Session, call: Call) -> int:
        """Number of tokens of the prompt that `call` would make.

        Raises:
            RequestError: the chat template refuses the messages, or the session is closed.
        """
        if session.closed:
            raise unauthorized()
        draft = session.capture.draft(Request(call.messages, call.tools, call.thinking))
        await _render(session.capture, draft)
        return len(draft.prompt)

    async def _read(self, text: str, generation: Generation, call: Call) -> Reading:
        if self._tools is None:
            return Reading(text=text, reasoning="", calls=(), unreadable=False)
        read = partial(self._tools.read, text, generation.token_ids, call.tools, thinking=call.thinking)
        if len(text) < _LONG_ANSWER:
            return read()
        return await _to_its_end(asyncio.get_running_loop().run_in_executor(self._readers, read))

    def _sampling(self, session: Session, call: Call, turn: OpenTurn) -> Sampling:
        own, room = session.sampling, self._window - len(turn.prompt)
        if session.capture.is_main(turn.request):
            session.overlong = False
        if room < 1:
            raise self._overflow(session, turn)
        if len(call.stop) > _MAX_STOPS or any(len(stop) > _MAX_STOP_CHARS for stop in call.stop):
            raise RequestError(
                f"stop: at most {_MAX_STOPS} strings of at most {_MAX_STOP_CHARS} characters are supported",
                code="invalid_value",
                param="stop",
            )
        if session.is_full_with(turn):
            session.turns_exhausted = True
            raise RequestError("the session has ended: it holds as much as it may", code="session_full")
        if call.temperature not in (None, own.temperature) or call.top_p not in (None, own.top_p):
            session.overrides += 1
        return Sampling(
            temperature=own.temperature,
            top_p=own.top_p,
            max_tokens=min(call.max_tokens or own.max_tokens, own.max_tokens, room),
            stop=tuple(dict.fromkeys((*own.stop, *call.stop))),
        )

    def _overflow(self, session: Session, turn: OpenTurn) -> RequestError:
        """What is told of a prompt that leaves no room for an answer, after it is counted."""
        # A helper's or a sub-agent's overflow ends no trial, nor does one after which the agent compacted and went on.
        session.overlong = session.overlong or session.capture.is_main(turn.request)
        session.overflows += 1
        # In OpenAI's own words, by which clients know that shortening the conversation would help.
        return RequestError(
            f"This model's maximum context length is {self._window} tokens. However, your messages resulted in "
            f"{len(turn.prompt)} tokens. Please reduce the length of the messages.",
            code="context_length_exceeded",
            param="messages",
        )

    async def _generate(self, session: Session, turn: OpenTurn, sampling: Sampling) -> Generation:
        """Sample in a task of its own, so that hanging up and revoking can both stop it."""
        started = time.monotonic()
        task = asyncio.create_task(self._policy.generate(turn.prompt, sampling, session.session_id))
        session.generations.add(task)
        try:
            await asyncio.wait({task})
        finally:
            session.generate_seconds += time.monotonic() - started
            session.generations.discard(task)
            if not task.done():  # the client hung up
                session.cancelled += 1
                await stop_generations([task])
        error = None if task.cancelled() else task.exception()
        if session.closed:
            session.cancelled += 1
            raise unauthorized()
        if isinstance(error, WindowExceeded):
            raise self._overflow(session, turn) from error
        if task.cancelled():
            raise PolicyFailure("the policy cancelled a generation by itself")
        if error is not None:
            raise PolicyFailure(f"the policy failed: {type(error).__name__}: {error}") from error
        generation = task.result()
        if not isinstance(generation, Generation) or not generation.token_ids:
            raise PolicyFailure(f"the policy answered with no Generation, or one without tokens: {generation!r:.200}")
        if generation.finish_reason == "abort":
            raise PolicyFailure("the policy aborted a generation that nobody cancelled")
        return generation


async def stop_generations(tasks: Sequence[asyncio.Task[Generation]]) -> None:
    """Stop generations; one that does not listen is left behind, and whatever it brings is thrown away."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CANCEL_GRACE_SECONDS)


def unauthorized() -> RequestError:
    """What is told to whoever has no session, or no longer."""
    return RequestError("unknown or closed session", code="invalid_api_key", status=401)


async def _wait_for_turn(session: Session, request: Request) -> None:
    """Return when a turn for `request` can be opened; nothing may be awaited before it is.

    Raises:
        RequestError: the session is closed, or has given its last answer.
    """
    capture = session.capture
    while True:
        if session.closed:
            raise unauthorized()
        if session.no_tool_end:
            raise RequestError(
                f"the session has ended: {session.no_tool_limit} answers in a row called no tool", code="no_tool_calls"
            )
        blocker = capture.blocker(request)
        if session.max_turns is not None:
            if capture.num_turns >= session.max_turns:
                session.turns_exhausted = True
                raise RequestError(
                    f"the session has ended: it has had its {session.max_turns} answers", code="max_turns_reached"
                )
            if capture.num_turns + len(capture.open_turns) >= session.max_turns:
                # One of these may be the last answer, or be given up.
                blocker = blocker or next(iter(capture.open_turns))
        if blocker is None:
            return
        await blocker.closed.wait()


def _message(reading: Reading) -> ChatMessage:
    """The answer as the client is told it, and may send it back."""
    message = ChatMessage(role="assistant", content=reading.text)
    if reading.reasoning:
        message["reasoning"] = reading.reasoning
    if reading.calls:
        message["tool_calls"] = list(reading.calls)
    return message


async def _render(capture: Capture, turn: OpenTurn) -> None:
    """Make the prompt of a turn.

    Raises:
        RequestError: the chat template refuses the messages.
    """
    try:
        if turn.chars_to_render < _LONG_TEXT:
            await turn_of_loop()
            capture.render(turn)
        else:
            await _to_its_end(asyncio.ensure_future(asyncio.to_thread(capture.render, turn)))
    except CodecError as error:
        raise RequestError(f"messages: {error}", code="invalid_value", param="messages") from error


async def _to_its_end(work: "asyncio.Future[T]") -> T:
    """The result of work in a thread. Nothing can stop that, so cancelling this ends when the work does: whoever hangs
    up again and again must not be able to heap up prompts that nobody waits for."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.gather(work, return_exceptions=True)
        raise
