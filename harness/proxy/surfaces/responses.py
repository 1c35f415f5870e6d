"""OpenAI's responses, without state: the client sends its whole history with each request."""

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Literal

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

from harness.proxy.conversation import ChatMessage
from harness.proxy.surfaces.base import (
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
    conversation,
    free_choice,
    read,
    require_distinct,
)
from harness.proxy.surfaces.responses_request import ResponsesRequest, messages_of, sealed, shown_tools

ENCRYPTED = "reasoning.encrypted_content"
"""What a client includes to be given reasoning in a form that it can send back."""


@register_surface("/v1/responses")
class ResponsesSurface(Surface):
    """Responses: function tools, custom tools (shown to the policy as functions of one text), namespaces (whose tools
    are shown under joined names) and reasoning items. Tools that the vendor would run are left out.

    An answer repeats neither the instructions nor the tools: a stream would carry them three times.
    """

    # a comment: the vendor's client takes no event before `response.created`, which is sent with the answer
    keep_alive = b": waits\n\n"

    def parse(self, body: Any, *, query: Mapping[str, str]) -> Call:
        request = read(ResponsesRequest, served_fields(body, RESPONSES))
        if "message.output_text.logprobs" in request.include:
            raise RequestError(
                "include: 'message.output_text.logprobs' is not supported; log-probabilities are told by "
                "/v1/chat/completions",
                code="unsupported_value",
                param="include",
            )
        may_call = free_choice(request.tool_choice)
        shown = shown_tools(request.tools)
        tools = require_distinct([tool for tool, _ in shown])
        system = [ChatMessage(role="system", content=request.instructions)] if request.instructions else []
        effort = request.reasoning.effort
        return Call(
            messages=conversation([*system, *messages_of(request.input)], param="input"),
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
        kept = {"encrypted_content": sealed(answer.reasoning)} if call.echo.get("encrypted") else {}
        thought = Content(type="reasoning_text", text=answer.reasoning)
        yield ResponseReasoningItem(id=_id("rs"), type="reasoning", summary=[], content=[thought], **kept)
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


def _custom_input(arguments: str) -> str:
    """The text that a call of a custom tool carries; all of it where the policy did not keep to the one argument."""
    given = json.loads(arguments)
    text = given.get("input") if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


def _dump(value: Response | ResponseOutputItem) -> dict[str, Any]:
    return value.model_dump(mode="json", exclude_unset=True, by_alias=True)


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
