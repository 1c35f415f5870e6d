"""Anthropic's messages."""

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from anthropic.types import (
    ContentBlock,
    Message,
    MessageDeltaUsage,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    Usage,
)
from pydantic import Discriminator, Field

from harness.proxy.conversation import ChatMessage, Tool, ToolCall
from harness.proxy.surfaces.base import MODEL_ID, Answer, Call, Decoder, Surface, frame, pieces, register_surface
from harness.proxy.surfaces.fields import MESSAGES, Ignored, served_fields
from harness.proxy.surfaces.reading import (
    UNSEEN,
    LoosePart,
    ModelName,
    Part,
    Schema,
    Text,
    ToolText,
    as_parts,
    as_tool,
    conversation,
    free_choice,
    read,
    require_distinct,
    to_json,
)

BILLING = "x-anthropic-billing-header"
"""How a line begins that Claude Code puts at the start of its system prompt; it differs from request to request."""

_COUNT = {**MESSAGES, "stream": Ignored("a count is one number")}

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class _Text(Part):
    type: Literal["text"]
    text: Text
    cache_control: Any = None
    citations: Any = None


class _Thinking(LoosePart):
    type: Literal["thinking"]
    thinking: Text = ""


class _Redacted(LoosePart):
    type: Literal["redacted_thinking"]  # another server's; there is nothing to read in it


class _ToolUse(LoosePart):
    type: Literal["tool_use"]
    id: Text
    name: Text
    input: dict[str, Any] = Field(default_factory=dict)


class _ResultPart(LoosePart):
    type: str
    text: ToolText = UNSEEN


class _ToolResult(LoosePart):
    type: Literal["tool_result"]
    tool_use_id: Text
    content: Annotated[list[_ResultPart], as_parts("text")] = Field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(part.text if part.type == "text" else UNSEEN for part in self.content)


_SystemContent = Annotated[list[_Text], as_parts("text")]
_UserBlock = Annotated[_Text | _ToolResult, Discriminator("type")]
_AssistantBlock = Annotated[_Text | _Thinking | _Redacted | _ToolUse, Discriminator("type")]


class _System(Part):
    role: Literal["system"]
    content: _SystemContent

    def normalised(self) -> Iterator[ChatMessage]:
        yield ChatMessage(role="system", content=_system_text(self.content))


class _User(Part):
    role: Literal["user"]
    content: Annotated[list[_UserBlock], as_parts("text")]

    def normalised(self) -> Iterator[ChatMessage]:
        texts: list[str] = []
        for block in self.content:
            if isinstance(block, _Text):
                texts.append(block.text)
                continue
            if texts:
                yield ChatMessage(role="user", content="\n".join(texts))
                texts = []
            yield ChatMessage(role="tool", content=block.text, tool_call_id=block.tool_use_id)
        if texts or not self.content:
            yield ChatMessage(role="user", content="\n".join(texts))


class _Assistant(Part):
    role: Literal["assistant"]
    content: Annotated[list[_AssistantBlock], as_parts("text")]

    def normalised(self) -> Iterator[ChatMessage]:
        texts = [block.text for block in self.content if isinstance(block, _Text)]
        thoughts = [block.thinking for block in self.content if isinstance(block, _Thinking)]
        calls = [
            ToolCall(id=block.id, name=block.name, arguments=to_json(block.input))
            for block in self.content
            if isinstance(block, _ToolUse)
        ]
        message = ChatMessage(role="assistant", content="\n".join(texts))
        if any(thoughts):
            message["reasoning"] = "\n".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        yield message


_Message = Annotated[_System | _User | _Assistant, Discriminator("role")]


class _CustomTool(LoosePart):
    type: Literal["custom"] = "custom"
    name: Text = Field(min_length=1)
    description: Text = ""
    input_schema: Schema

    def normalised(self) -> Tool:
        return as_tool(self.name, self.description, self.input_schema)


class _ThinkingOptions(LoosePart):
    type: Text


class _OutputOptions(Part):
    effort: Text | None = None  # a hint to hosted models only
    task_budget: Any = None
    format: None = None  # a schema would have to be enforced, which bends the distribution that is trained on


class _Request(Part):
    messages: list[_Message] = Field(min_length=1)
    model: ModelName = MODEL_ID
    max_tokens: int | None = Field(default=None, ge=1)
    system: _SystemContent = Field(default_factory=list)
    stop_sequences: list[Text] = Field(default_factory=list)
    stream: bool = False
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, ge=0, le=1)
    thinking: _ThinkingOptions | None = None
    tools: list[_CustomTool] = Field(default_factory=list)
    tool_choice: Any = None
    output_config: _OutputOptions = _OutputOptions()


class _MessageRequest(_Request):
    max_tokens: int = Field(ge=1)


@register_surface("/v1/messages")
class MessagesSurface(Surface):
    """Messages. The beta of them (`?beta=true`) is served alike: its further fields are in the table.

    Thinking is told only to clients that ask for it, as they are not prepared for it otherwise.
    """

    keep_alive = frame({"type": "ping"}, "ping")

    def parse(self, body: Any, *, query: Mapping[str, str]) -> Call:
        return _call(read(_MessageRequest, served_fields(body, MESSAGES)))

    def complete(self, call: Call, answer: Answer, codec: Decoder) -> dict[str, Any]:
        return _dump(_message(call, answer))

    def events(self, call: Call, answer: Answer, codec: Decoder) -> Iterator[bytes]:
        message = _message(call, answer)
        usage = message.usage
        opening = message.model_copy(
            update={
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": usage.model_copy(update={"output_tokens": 1}),
            }
        )
        yield _event("message_start", message=_dump(opening))
        for index, block in enumerate(message.content):
            yield from _block_events(index, block)
        total = MessageDeltaUsage(
            input_tokens=usage.input_tokens,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=usage.cache_read_input_tokens,
            output_tokens=usage.output_tokens,
        )
        end = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        yield _event("message_delta", delta=end, usage=total.model_dump(mode="json", exclude_unset=True))
        yield _event("message_stop")

    def error(self, status: int, message: str, code: str, param: str | None = None) -> dict[str, Any]:
        kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        if code == "context_length_exceeded":
            message = f"prompt is too long: {message}"  # by these words agents know that it helps to compact
        # `code` and `param` are no fields of Anthropic's; its clients pass over them, and a reader of logs does not.
        return {"type": "error", "error": {"type": kind, "message": message, "code": code, "param": param}}

    def error_event(self, status: int, message: str, code: str, param: str | None = None) -> bytes:
        return frame(self.error(status, message, code, param), "error")


def parse_count(body: Any, *, query: Mapping[str, str]) -> Call:
    """The call whose prompt `/v1/messages/count_tokens` is asked to count.

    Raises:
        RequestError: a field is missing, wrong or not supported; it is named.
    """
    return _call(read(_Request, served_fields(body, _COUNT)))


def _call(request: _Request) -> Call:
    may_call = free_choice(request.tool_choice)
    tools = require_distinct([tool.normalised() for tool in request.tools])
    system = _system_text(request.system)
    messages = [ChatMessage(role="system", content=system)] if system else []
    for message in request.messages:
        messages += message.normalised()
    return Call(
        messages=conversation(messages, param="messages"),
        tools=tools if may_call else (),
        max_tokens=request.max_tokens,
        stop=tuple(s for s in request.stop_sequences if s),
        temperature=request.temperature,
        top_p=request.top_p,
        stream=request.stream,
        thinking=None if request.thinking is None else request.thinking.type != "disabled",
        include_usage=True,
        model=request.model,
    )


def _system_text(blocks: list[_Text]) -> str:
    return "\n".join(text for text in (_without_billing(block.text) for block in blocks) if text)


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING) else text


def _message(call: Call, answer: Answer) -> Message:
    content: list[ContentBlock] = []
    if answer.reasoning and call.thinking:
        content.append(ThinkingBlock(type="thinking", thinking=answer.reasoning, signature=uuid.uuid4().hex))
    if answer.text or not (content or answer.tool_calls):
        content.append(TextBlock(type="text", text=answer.text))
    for made in answer.tool_calls:
        content.append(ToolUseBlock(type="tool_use", id=made["id"], name=made["name"], input=_input(made)))
    reason, sequence = _stop(call, answer)
    return Message(
        id=f"msg_{uuid.uuid4().hex}",
        type="message",
        role="assistant",
        model=call.model,
        content=content,
        stop_reason=reason,
        stop_sequence=sequence,
        usage=Usage(
            # Anthropic counts apart what came from the cache.
            input_tokens=answer.prompt_tokens - answer.cached_tokens,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=answer.cached_tokens,
            output_tokens=len(answer.generation.token_ids),
        ),
    )


def _input(made: ToolCall) -> dict[str, Any]:
    given: dict[str, Any] = json.loads(made["arguments"])
    return given


def _stop(call: Call, answer: Answer) -> tuple[StopReason, str | None]:
    if answer.finish == "length":
        return "max_tokens", None
    if answer.finish == "tool_calls":
        return "tool_use", None
    if answer.stop_string in call.stop:
        return "stop_sequence", answer.stop_string
    return "end_turn", None


def _block_events(index: int, block: ContentBlock) -> Iterator[bytes]:
    whole = _dump(block)
    deltas: list[dict[str, Any]]
    match block:
        case ThinkingBlock():
            shell = whole | {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block.thinking)]
            deltas.append({"type": "signature_delta", "signature": block.signature})
        case ToolUseBlock():
            shell = whole | {"input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(to_json(block.input))]
        case _:
            shell = whole | {"text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(whole["text"])]
    yield _event("content_block_start", index=index, content_block=shell)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _event(kind: str, **fields: Any) -> bytes:
    return frame({"type": kind, **fields}, kind)


def _dump(value: Message | ContentBlock) -> dict[str, Any]:
    return value.model_dump(mode="json", exclude_unset=True, by_alias=True)
