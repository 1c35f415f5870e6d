"""Conversations as reversible ids, for endpoints that speak messages and tell no tokens.

The proxy keeps what an agent says and is told as ids, and only the policy's own ids are ever continued. Where there are
none, a conversation is written down as JSON between marks, and its bytes are the ids, three to one: about as many as
tokens, so that windows and lengths mean roughly what they say. `conversation_in` reads it back.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.endpoint.client import EndpointError
from harness.proxy.codec import AnswerText, ChatCodec, template_id
from harness.proxy.conversation import Tool, ToolCall
from harness.proxy.tool_calls import Reading, ToolReader
from trainer.rollout import Generation

UNKNOWN_LOGPROB = -9999.0
"""In the place of log-probs that nobody told."""

_PIECE = 3
_OFFSETS = (0, 256, 256 + 256**2)
"""Ids of one byte begin at the first, those of two at the second, those of three at the third."""
_FIRST_MARK = _OFFSETS[-1] + 256**3
_MARKS = ("<|wire:tools|>", "<|wire:message|>", "<|wire:answer|>", "<|wire:end|>")
TOOLS, MESSAGE, ANSWER, END = range(_FIRST_MARK, _FIRST_MARK + len(_MARKS))


@dataclass(frozen=True)
class _Mark:
    content: str
    special: bool = True


class WireTokenizer:
    """A tokenizer whose chat template writes messages down as JSON, and whose ids are bytes."""

    def __init__(self) -> None:
        self.chat_template: Any = "wire"
        self.eos_token_id: int | None = END
        self.all_special_ids = [TOOLS, MESSAGE, ANSWER, END]
        self.added_tokens_decoder: dict[int, Any] = {_FIRST_MARK + i: _Mark(text) for i, text in enumerate(_MARKS)}

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        """Text of a conversation; only the tools and the opening of an answer are asked for by `options`."""
        tools, message, answer, end = _MARKS
        parts = [f"{tools}{json.dumps(options['tools'])}{end}"] if options.get("tools") else []
        for said in conversation:
            parts.append(f"{answer if said['role'] == 'assistant' else message}{json.dumps(said)}{end}")
        return "".join([*parts, answer if options.get("add_generation_prompt") else ""])

    def encode(self, text: str, **_: Any) -> list[int]:
        ids: list[int] = []
        for part in re.split("(" + "|".join(map(re.escape, _MARKS)) + ")", text):
            ids += [_FIRST_MARK + _MARKS.index(part)] if part in _MARKS else encode_text(part)
        return ids

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False, **_: Any) -> str:
        pieces = bytearray()
        for token in token_ids:
            if token >= _FIRST_MARK:
                pieces += b"" if skip_special_tokens else _MARKS[token - _FIRST_MARK].encode()
            else:
                pieces += _bytes_of(token)
        return pieces.decode("utf-8", "replace")


class WireCodec(ChatCodec):
    """A codec whose answers are whole messages: the endpoint has seen to stop strings itself."""

    def __init__(self) -> None:
        super().__init__(WireTokenizer())

    def decode_answer(self, generation: Generation, stop: Sequence[str]) -> AnswerText:
        return AnswerText(self.decode(generation.token_ids), None)


class WireReader(ToolReader):
    """Reads an answer that `encode_answer` wrote down; the endpoint has parsed calls and thinking already."""

    def __init__(self) -> None:
        super().__init__(None, None, None)

    def read(
        self, text: str, token_ids: Sequence[int], tools: Sequence[Tool], *, thinking: bool | None = None
    ) -> Reading:
        message = json.loads(text)
        calls = tuple(
            ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in message.get("tool_calls", ())
        )
        return Reading(message["content"], message.get("reasoning_content", ""), calls, unreadable=False)


_TOKENIZER = WireTokenizer()


def encode_text(text: str) -> list[int]:
    """Ids of a text's bytes."""
    data = text.encode("utf-8", "replace")
    pieces = (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))
    return [_OFFSETS[len(piece) - 1] + int.from_bytes(piece, "big") for piece in pieces]


def encode_answer(text: str, reasoning: str, calls: Sequence[ToolCall]) -> list[int]:
    """Ids of an answer of the endpoint, with the end of its turn."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in calls
        ]
    return [*encode_text(json.dumps(message)), END]


def conversation_in(prompt_ids: Sequence[int]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and tools of a prompt, as the chat completions API wants them.

    Raises:
        EndpointError: the ids were not written by `WireCodec`.
    """
    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    for mark, ids in _blocks(prompt_ids):
        value = json.loads(_TOKENIZER.decode(ids))
        if mark == TOOLS:
            tools = value
        else:
            messages.append(_for_chat(value))
    return messages, tools


def _blocks(ids: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Each mark with what stands between it and the end; the last opens the answer that is asked for."""
    mark, block = 0, list[int]()
    for token in ids:
        if token == END:
            if mark not in (TOOLS, MESSAGE, ANSWER):
                raise EndpointError("the prompt was not written by this codec: an end without a beginning")
            yield mark, block
            mark, block = 0, []
        elif token >= _FIRST_MARK:
            mark, block = token, []
        else:
            block.append(token)
    if mark != ANSWER or block:
        raise EndpointError("the prompt was not written by this codec: it does not end where an answer begins")


def _for_chat(message: dict[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in message.items() if name in ("role", "content", "tool_call_id", "name")}
    if message["role"] == "assistant":
        told.pop("name", None)
    if calls := message.get("tool_calls"):
        told["content"] = message["content"] or None
        told["tool_calls"] = [
            # a tool's message names the call by the id that the codec makes of it
            call | {"id": template_id(call["id"]), "function": _with_text_arguments(call["function"])}
            for call in calls
        ]
    return told


def _with_text_arguments(function: dict[str, Any]) -> dict[str, Any]:
    given = function["arguments"]
    return function | {"arguments": given if isinstance(given, str) else json.dumps(given)}


def _bytes_of(token: int) -> bytes:
    size = 1 + sum(token >= offset for offset in _OFFSETS[1:])
    return (token - _OFFSETS[size - 1]).to_bytes(size, "big")
