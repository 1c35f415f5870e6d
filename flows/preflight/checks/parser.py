"""Whether the engine's parser reads the tool calls of this model: found by rendering one and reading it back."""

import json
from collections.abc import Iterator
from typing import Any

from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, fatal, ok, warn
from flows.preflight.model_facts import ModelFacts
from flows.preflight.of_model import of_model
from flows.preflight.registry import check
from harness.proxy.codec import ChatCodec, CodecError
from harness.proxy.conversation import ChatMessage, Tool, ToolCall
from harness.proxy.tool_calls import ToolParserError, ToolReader, known_parsers
from harness.scaffolds.base import find_scaffold

_ARGUMENTS = {"path": "src/app.py", "lines": 3}
_TOOL = Tool(
    name="read_file",
    description="Read a file.",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
        "required": ["path"],
    },
)
_CALL = ToolCall(id="call00001", name="read_file", arguments=json.dumps(_ARGUMENTS))
_ASKED: list[ChatMessage] = [{"role": "user", "content": "Show me src/app.py."}]
_CALLING: ChatMessage = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_ANSWERED: list[ChatMessage] = [{"role": "tool", "content": "import os", "tool_call_id": "call00001"}]


@check("tool-parser")
@of_model
def tool_parser(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    """A sample call, rendered by the chat template, comes back as the call that it was."""
    serving = facts.config.serving
    parser, agents = serving.tool_call_parser, facts.scaffolds
    calling = sorted({agent.name for agent in agents if find_scaffold(agent.name).calls_tools(agent)})
    if parser is None:  # a configuration whose agents call tools is refused without one
        yield ok("serving.tool_call_parser", parser, f"{', '.join(agent.name for agent in agents)} needs no tool calls")
        return
    try:
        codec = ChatCodec(model.tokenizer)
        ids = rendered_call(codec)
    except CodecError as error:
        if calling:
            yield fatal(
                "scaffold.name",
                ", ".join(calling),
                f"acts by tool calls, and {error}",
                "choose a scaffold without tools (edit, mini_text, terminus), or another model",
            )
        else:
            yield warn("serving.tool_call_parser", parser, f"has nothing to read: {error}", "leave it unset")
        return
    complaint = read_back(model.tokenizer, codec, ids, parser, serving.reasoning_parser)
    if complaint:
        yield fatal("serving.tool_call_parser", parser, complaint, _mend(model, codec, ids))
    else:
        yield ok("serving.tool_call_parser", parser, "reads back a call that this model's chat template wrote")


def rendered_call(codec: ChatCodec) -> list[int]:
    """Ids of an answer that is one tool call, as the chat template writes it into a history; its end left out.

    Raises:
        CodecError: the template shows no tools, or refuses such a conversation.
    """
    asked = codec.encode_prompt(_ASKED, [_TOOL])
    whole = codec.encode_prompt([*_ASKED, _CALLING, *_ANSWERED], [_TOOL])
    tail = codec.encode_delta(_CALLING, _ANSWERED, [], [_TOOL])
    start = next((i for i, (a, b) in enumerate(zip(asked, whole, strict=False)) if a != b), len(asked))
    if whole[-len(tail) :] != tail or start >= len(whole) - len(tail):
        raise CodecError("the chat template does not write a call's turn the same way twice")
    return whole[start : len(whole) - len(tail)]


def read_back(tokenizer: Any, codec: ChatCodec, ids: list[int], parser: str, reasoning: str | None) -> str:
    """What is wrong with how `parser` reads the sample call; empty if nothing is."""
    try:
        reading = ToolReader(tokenizer, parser, reasoning).read(codec.decode(ids), ids, [_TOOL])
    except Exception as error:  # vLLM's parsers want packages of their own, and raise whatever they like
        return str(error) if isinstance(error, ToolParserError) else f"cannot be used: {type(error).__name__}: {error}"
    written = f"{tokenizer.decode(ids)!r}, as this model's chat template writes it"
    if len(reading.calls) != 1:
        return f"reads {len(reading.calls)} calls instead of one from {written}"
    call = reading.calls[0]
    if call["name"] != _CALL["name"] or json.loads(call["arguments"]) != _ARGUMENTS:
        return f"reads {call['name']}({call['arguments']}) instead of read_file({_CALL['arguments']}) from {written}"
    return ""


def fitting_parsers(tokenizer: Any, codec: ChatCodec, ids: list[int]) -> list[str]:
    """The parsers that read the sample call as it is."""
    return [name for name in known_parsers() if not read_back(tokenizer, codec, ids, name, None)]


def _mend(model: ModelFacts, codec: ChatCodec, ids: list[int]) -> str:
    fitting = fitting_parsers(model.tokenizer, codec, ids)
    return (
        f"set it to {' or '.join(fitting)}" if fitting else "no parser that is known here reads it; take another model"
    )
