"""Real captures without a tokenizer: a codec that knows no text, and requests that send back what they were told."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from support.scripted import generation

from harness.proxy.capture import Capture, Request
from harness.proxy.conversation import ChatMessage, Tool, ToolCall

PROMPT = (1, 2, 3)
DELTA = (7,)
TOOL = 90


@dataclass
class PlainCodec:
    """Encodes every first prompt as PROMPT and a TOOL for each tool, and whatever follows an answer as `delta`."""

    delta: Sequence[int] = DELTA

    def encode_prompt(self, messages: Any, tools: Sequence[Tool], thinking: Any) -> list[int]:
        return [*PROMPT, *[TOOL] * len(tools)]

    def encode_delta(self, *_: Any) -> list[int]:
        return list(self.delta)


def make_capture(segments: Sequence[Sequence[Sequence[int]]], between: Sequence[int] = DELTA) -> Capture:
    """The capture of a session whose conversations had these sampled turns, one conversation after the other."""
    capture = Capture(PlainCodec(between))  # type: ignore[arg-type]
    for number, turns in enumerate(segments):
        messages: list[ChatMessage] = [user(f"mend it, try {number}")]
        for ids in turns:
            messages = [*messages, ask(capture, messages, ids), user("go on")]
    return capture


def ask(
    capture: Capture,
    messages: Sequence[ChatMessage],
    ids: Sequence[int],
    *,
    text: str = "so",
    reasoning: str = "",
    calls: Sequence[ToolCall] = (),
    tools: Sequence[Tool] = (),
    version: int = 0,
) -> ChatMessage:
    """Have the policy answer `messages` with `ids`. Returns what the client was told."""
    told = ChatMessage(role="assistant", content=text)
    if reasoning:
        told["reasoning"] = reasoning
    if calls:
        told["tool_calls"] = list(calls)
    turn = capture.begin_turn(Request(messages, tools))
    capture.end_turn(turn, generation(ids, version=version), told)
    return told


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def system(text: str) -> ChatMessage:
    return ChatMessage(role="system", content=text)


def result(call: ToolCall, text: str) -> ChatMessage:
    """What a tool answered."""
    return ChatMessage(role="tool", content=text, tool_call_id=call["id"])


BASH = Tool(name="bash", description="runs a command", parameters={"type": "object"})
TASK = Tool(name="task", description="asks a sub-agent", parameters={"type": "object"})


def busy_capture() -> Capture:
    """A session with all that happens: tools, thinking, a helper, a sub-agent, an edited history, compaction.

    Segments: 0 the main conversation (three turns), 1 a helper that makes up a title, 2 a sub-agent (two turns), 3 a
    fork of the main one after its second turn, 4 the main one after compaction.
    """
    capture = Capture(PlainCodec())  # type: ignore[arg-type]
    tools = (BASH, TASK)
    look = ToolCall(id="call_1", name="bash", arguments='{"command": "ls"}')
    delegate = ToolCall(id="call_2", name="task", arguments='{"prompt": "read it"}')
    broken = ToolCall(id="call_3", name="bash", arguments='{"command": "l')
    main = [system("you mend code"), user("mend it")]
    main += [ask(capture, main, (4, 5), text="", reasoning="look first", calls=[look], tools=tools)]
    ask(capture, [system("make up a title"), user("mend it")], (6,), text="Mending")
    main += [result(look, "solution.py")]
    main += [ask(capture, main, (8, 9), text="to the other one", calls=[delegate, broken], tools=tools, version=1)]
    sub = [system("you read code"), user("read it")]
    sub += [ask(capture, sub, (10,), text="reading", tools=(BASH,))]
    ask(capture, [*sub, user("and?")], (11, 12), text="a sign is wrong", tools=(BASH,))
    answers = [result(delegate, "a sign is wrong"), result(broken, "no such command")]
    ask(capture, [*main, *answers], (13,), text="mended", tools=tools)
    ask(capture, [*main, result(delegate, "edited")], (14, 15), text="mended again", tools=tools)
    summary = [system("you mend code"), user("so far: a sign is wrong"), *main[2:4]]
    ask(capture, summary, (16,), text="done", tools=tools)
    return capture
