"""OpenAI's responses, without state: the client sends its whole history with each request."""

import base64
import binascii
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from openai.types.responses import (
    Response,
    ResponseCustomToolCall,
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
    ResponseUsage,
)
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_reasoning_item import Content
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import BeforeValidator, Discriminator, Field, Tag

from harness.proxy.conversation import ChatMessage, Tool, ToolCall
from harness.proxy.surfaces.base import (
    MODEL_ID,
    Answer,
    Call,
    Decoder,
    RequestError,
    Surface,
    ToldTool,
    frame,
    pieces,
    register_surface,
)
from harness.proxy.surfaces.chat import openai_error
from harness.proxy.surfaces.fields import RESPONSES, served_fields
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

ENCRYPTED = "reasoning.encrypted_content"
"""What a client includes to be given reasoning in a form that it can send back."""


class _TextPart(LoosePart):
    type: Literal["input_text", "output_text", "text", "refusal"]
    text: Text = ""
    refusal: Text = ""


class _Message(LoosePart):
    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer", "assistant"]
    content: Annotated[list[_TextPart], as_parts("input_text")]

    @property
    def text(self) -> str:
        return "".join(part.text or part.refusal for part in self.content)


class _ReasoningText(LoosePart):
    text: Text = ""


class _Reasoning(LoosePart):
    type: Literal["reasoning"]
    summary: list[_ReasoningText] = Field(default_factory=list)
    content: list[_ReasoningText] = Field(default_factory=list)
    encrypted_content: Text = ""

    @property
    def text(self) -> str:
        for told in ("".join(part.text for part in self.content), _opened(self.encrypted_content)):
            if told:
                return told
        return "\n\n".join(part.text for part in self.summary)


class _FunctionCall(LoosePart):
    type: Literal["function_call"]
    call_id: Text
    name: Text
    namespace: Text | None = None
    arguments: Text = "{}"


class _CustomCall(LoosePart):
    type: Literal["custom_tool_call"]
    call_id: Text
    name: Text
    namespace: Text | None = None
    input: Text = ""


class _OutputPart(LoosePart):
    type: str
    text: ToolText = UNSEEN


class _CallOutput(LoosePart):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: Text
    output: Annotated[list[_OutputPart], as_parts("input_text")]

    @property
    def text(self) -> str:
        return "".join(part.text if part.type.endswith("text") else UNSEEN for part in self.output)


def _kind(item: Any) -> str | None:
    """The type of an input item; a message may leave it out."""
    if isinstance(item, dict):
        return item.get("type") or ("message" if "role" in item else None)
    return getattr(item, "type", None)


_Item = Annotated[
    Annotated[_Message, Tag("message")]
    | Annotated[_Reasoning, Tag("reasoning")]
    | Annotated[_FunctionCall, Tag("function_call")]
    | Annotated[_CustomCall, Tag("custom_tool_call")]
    | Annotated[_CallOutput, Tag("function_call_output")]
    | Annotated[_CallOutput, Tag("custom_tool_call_output")],
    Discriminator(_kind),
]


class _FunctionTool(LoosePart):
    type: Literal["function"]
    name: Text = Field(min_length=1)
    description: Text = ""
    parameters: Schema = Field(default_factory=dict)


class _CustomFormat(LoosePart):
    type: Text = "text"
    syntax: Text = ""
    definition: Text = ""


class _CustomTool(LoosePart):
    type: Literal["custom"]
    name: Text = Field(min_length=1)
    description: Text = ""
    format: _CustomFormat = _CustomFormat()


class _Namespace(LoosePart):
    type: Literal["namespace"]
    name: Text = Field(min_length=1)
    tools: list[Annotated[_FunctionTool | _CustomTool, Discriminator("type")]]


class _Hosted(LoosePart):
    """A tool that the vendor's servers would run, such as web_search. Agents offer them unasked; the policy is not
    shown them, so it never calls them."""

    type: Text


def _tool_kind(tool: Any) -> str | None:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return kind if kind in ("function", "custom", "namespace", None) else "hosted"


_AnyTool = Annotated[
    Annotated[_FunctionTool, Tag("function")]
    | Annotated[_CustomTool, Tag("custom")]
    | Annotated[_Namespace, Tag("namespace")]
    | Annotated[_Hosted, Tag("hosted")],
    Discriminator(_tool_kind),
]


class _ReasoningOptions(LoosePart):
    effort: Text | None = None


class _TextFormat(LoosePart):
    type: Literal["text"]  # a schema would have to be enforced, which bends the distribution that is trained on


class _TextOptions(LoosePart):
    format: _TextFormat | None = None


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class _Request(Part):
    input: Annotated[list[_Item], BeforeValidator(_as_items)] = Field(min_length=1)
    instructions: Text = ""
    model: ModelName = MODEL_ID
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    stream: bool = False
    tools: list[_AnyTool] = Field(default_factory=list)
    tool_choice: Any = None
    reasoning: _ReasoningOptions = _ReasoningOptions()
    text: _TextOptions = _TextOptions()
    include: list[str] = Field(default_factory=list)
    metadata: dict[str, Text] = Field(default_factory=dict)


@register_surface("/v1/responses")
class ResponsesSurface(Surface):
    """Responses: function tools, custom tools (shown to the policy as functions of one text), namespaces (whose tools
    are shown under joined names) and reasoning items. Tools that the vendor would run are left out.

    An answer repeats neither the instructions nor the tools: a stream would carry them three times.
    """

    def parse(self, body: Any, *, query: Mapping[str, str]) -> Call:
        request = read(_Request, served_fields(body, RESPONSES))
        if "message.output_text.logprobs" in request.include:
            raise RequestError(
                "include: 'message.output_text.logprobs' is not supported; log-probabilities are told by "
                "/v1/chat/completions",
                code="unsupported_value",
                param="include",
            )
        may_call = free_choice(request.tool_choice)
        shown = _shown_tools(request.tools)
        tools = require_distinct([tool for tool, _ in shown])
        system = [ChatMessage(role="system", content=request.instructions)] if request.instructions else []
        effort = request.reasoning.effort
        return Call(
            messages=conversation([*system, *_messages(request.input)], param="input"),
            tools=tools if may_call else (),
            max_tokens=request.max_output_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            stream=request.stream,
            thinking=None if effort is None else effort != "none",
            include_usage=True,
            model=request.model,
            told_tools={tool["name"]: told for tool, told in shown},
            echo={
                "metadata": request.metadata,
                "tool_choice": "auto" if may_call else "none",
                "encrypted": ENCRYPTED in request.include,
            },
        )

    def complete(self, call: Call, answer: Answer, codec: Decoder) -> dict[str, Any]:
        return _finished(_started(call), call, answer).model_dump(mode="json", exclude_unset=True, by_alias=True)

    def events(self, call: Call, answer: Answer, codec: Decoder) -> Iterator[bytes]:
        started = _started(call)
        finished = _finished(started, call, answer)
        events = _Events()
        for kind in ("response.created", "response.in_progress"):
            yield events.frame(kind, response=_dump(started))
        for index, item in enumerate(finished.output):
            yield from _item_events(events, index, item)
        last = "response.incomplete" if answer.finish == "length" else "response.completed"
        yield events.frame(last, response=_dump(finished))

    def error(self, status: int, message: str, code: str, param: str | None = None) -> dict[str, Any]:
        return openai_error(status, message, code, param)

    def error_event(self, status: int, message: str, code: str, param: str | None = None) -> bytes:
        started = _dump(_started(Call(messages=())))
        failed = started | {"status": "failed", "error": {"code": code, "message": message}}
        events = _Events()
        return events.frame("response.created", response=started) + events.frame("response.failed", response=failed)


class _Events:
    """Frames of one stream, numbered."""

    def __init__(self) -> None:
        self._number = 0

    def frame(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return frame(data, kind)


def _item_events(events: _Events, index: int, item: ResponseOutputItem) -> Iterator[bytes]:
    """The events that build up one output item, from its empty shell to itself."""
    whole = _dump(item)
    at: dict[str, Any] = {"output_index": index, "item_id": whole["id"]}
    shell = whole | {"status": "in_progress"}
    for empty, nothing in (("content", []), ("arguments", ""), ("input", "")):
        if empty in whole:
            shell[empty] = nothing
    yield events.frame("response.output_item.added", output_index=index, item=shell)
    match item:
        case ResponseReasoningItem() | ResponseOutputMessage():
            name = "reasoning_text" if isinstance(item, ResponseReasoningItem) else "output_text"
            for content_index, part in enumerate(whole["content"]):
                here = at | {"content_index": content_index}
                # Text of a message, but not that of reasoning, comes with a place for log-probabilities.
                beside: dict[str, Any] = {"logprobs": []} if name == "output_text" else {}
                yield events.frame("response.content_part.added", **here, part=part | {"text": ""})
                for piece in pieces(part["text"]):
                    yield events.frame(f"response.{name}.delta", **here, **beside, delta=piece)
                yield events.frame(f"response.{name}.done", **here, **beside, text=part["text"])
                yield events.frame("response.content_part.done", **here, part=part)
        case ResponseFunctionToolCall():
            for piece in pieces(item.arguments):
                yield events.frame("response.function_call_arguments.delta", **at, delta=piece)
            yield events.frame("response.function_call_arguments.done", **at, name=item.name, arguments=item.arguments)
        case ResponseCustomToolCall():
            for piece in pieces(item.input):
                yield events.frame("response.custom_tool_call_input.delta", **at, delta=piece)
            yield events.frame("response.custom_tool_call_input.done", **at, input=item.input)
    yield events.frame("response.output_item.done", output_index=index, item=whole)


def _started(call: Call) -> Response:
    """The response before there is an answer."""
    return Response(
        id=_id("resp"),
        created_at=float(int(time.time())),
        object="response",
        model=call.model,
        status="in_progress",
        error=None,
        incomplete_details=None,
        instructions=None,
        metadata=call.echo.get("metadata", {}),
        output=[],
        parallel_tool_calls=True,
        previous_response_id=None,
        store=False,
        temperature=call.temperature,
        tool_choice=call.echo.get("tool_choice", "auto"),
        tools=[],
        top_p=call.top_p,
        max_output_tokens=call.max_tokens,
        usage=None,
    )


def _finished(started: Response, call: Call, answer: Answer) -> Response:
    cut = answer.finish == "length"
    sampled = len(answer.generation.token_ids)
    usage = ResponseUsage(
        input_tokens=answer.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=answer.cached_tokens, cache_write_tokens=0),
        output_tokens=sampled,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=0),  # not counted apart
        total_tokens=answer.prompt_tokens + sampled,
    )
    return started.model_copy(
        update={
            "status": "incomplete" if cut else "completed",
            "incomplete_details": IncompleteDetails(reason="max_output_tokens") if cut else None,
            "output": list(_output(call, answer)),
            "usage": usage,
        }
    )


def _output(call: Call, answer: Answer) -> Iterator[ResponseOutputItem]:
    """The items of an answer. Without any call there is a message, be it empty."""
    status: Literal["completed", "incomplete"] = "incomplete" if answer.finish == "length" else "completed"
    if answer.reasoning:
        sealed = {"encrypted_content": _sealed(answer.reasoning)} if call.echo.get("encrypted") else {}
        thought = Content(type="reasoning_text", text=answer.reasoning)
        yield ResponseReasoningItem(id=_id("rs"), type="reasoning", summary=[], content=[thought], **sealed)
    if answer.text or not answer.tool_calls:
        yield ResponseOutputMessage(
            id=_id("msg"),
            type="message",
            role="assistant",
            status=status,
            content=[ResponseOutputText(type="output_text", text=answer.text, annotations=[], logprobs=[])],
        )
    for made in answer.tool_calls:
        told = call.told_tools.get(made["name"], ToldTool(made["name"]))
        space = {"namespace": told.namespace} if told.namespace else {}
        if told.custom:
            yield ResponseCustomToolCall(
                id=_id("ctc"),
                type="custom_tool_call",
                call_id=made["id"],
                name=told.name,
                input=_custom_input(made["arguments"]),
                **space,
            )
        else:
            yield ResponseFunctionToolCall(
                id=_id("fc"),
                type="function_call",
                call_id=made["id"],
                name=told.name,
                arguments=made["arguments"],
                status="completed",
                **space,
            )


def _messages(items: list[Any]) -> Iterator[ChatMessage]:
    """The items as messages. What the policy gave in one answer, reasoning, text and calls, is one message."""
    turn: ChatMessage | None = None
    for item in items:
        belongs = isinstance(item, _Reasoning | _FunctionCall | _CustomCall) or (
            isinstance(item, _Message) and item.role == "assistant"
        )
        # An answer is in this order: reasoning, text, calls. What comes earlier in it begins the next one.
        if turn is not None and (
            not belongs
            or isinstance(item, _Reasoning)
            or (isinstance(item, _Message) and (turn["content"] or "tool_calls" in turn))
        ):
            yield turn
            turn = None
        if belongs and turn is None:
            turn = ChatMessage(role="assistant", content="")
        match item:
            case _Message(role="assistant") if turn is not None:
                turn["content"] = item.text
            case _Message():
                yield ChatMessage(role="user" if item.role == "user" else "system", content=item.text)
            case _Reasoning() if turn is not None:
                if item.text:
                    turn["reasoning"] = item.text
            case _FunctionCall() | _CustomCall() if turn is not None:
                arguments = item.arguments if isinstance(item, _FunctionCall) else to_json({"input": item.input})
                call = ToolCall(id=item.call_id, name=_shown_name(item.namespace, item.name), arguments=arguments)
                turn.setdefault("tool_calls", []).append(call)
            case _CallOutput():
                yield ChatMessage(role="tool", content=item.text, tool_call_id=item.call_id)
    if turn is not None:
        yield turn


def _shown_tools(tools: list[Any]) -> list[tuple[Tool, ToldTool]]:
    """The tools that the policy is shown, each with the one that the client knows."""
    shown = []
    for tool in tools:
        match tool:
            case _Namespace():
                shown += [_shown_tool(inner, tool.name) for inner in tool.tools]
            case _FunctionTool() | _CustomTool():
                shown.append(_shown_tool(tool, None))
    return shown


def _shown_tool(tool: _FunctionTool | _CustomTool, namespace: str | None) -> tuple[Tool, ToldTool]:
    name = _shown_name(namespace, tool.name)
    if isinstance(tool, _FunctionTool):
        return as_tool(name, tool.description, tool.parameters), ToldTool(tool.name, namespace)
    description = tool.description
    if tool.format.definition:
        description += f"\n\nThe input follows this grammar ({tool.format.syntax}):\n{tool.format.definition}"
    parameters = {
        "type": "object",
        "properties": {"input": {"type": "string", "description": "The whole input, as plain text."}},
        "required": ["input"],
        "additionalProperties": False,
    }
    return as_tool(name, description, parameters), ToldTool(tool.name, namespace, custom=True)


def _shown_name(namespace: str | None, name: str) -> str:
    return name if not namespace else f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def _custom_input(arguments: str) -> str:
    """The text that a call of a custom tool carries; all of it where the policy did not keep to the one argument."""
    given = json.loads(arguments)
    text = given.get("input") if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


def _sealed(reasoning: str) -> str:
    """Reasoning as the opaque text that clients keep: not secret, only in their way."""
    return base64.b64encode(reasoning.encode("utf-8", "replace")).decode()


def _opened(sealed: str) -> str:
    try:
        return base64.b64decode(sealed, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""  # sealed by another server, whose thoughts are not ours


def _dump(value: Response | ResponseOutputItem) -> dict[str, Any]:
    return value.model_dump(mode="json", exclude_unset=True, by_alias=True)


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
