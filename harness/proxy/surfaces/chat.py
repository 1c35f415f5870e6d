"""OpenAI's chat completions."""

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from openai.types import CompletionUsage
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionTokenLogprob,
)
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as ChunkLogprobs
from openai.types.chat.chat_completion_message_function_tool_call import Function
from openai.types.completion_usage import PromptTokensDetails
from pydantic import Discriminator, Field

from harness.proxy.conversation import ChatMessage, Tool, ToolCall
from harness.proxy.surfaces.base import MODEL_ID, Answer, Call, Decoder, Surface, frame, pieces, register_surface
from harness.proxy.surfaces.fields import CHAT, served_fields
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
)


class _TextPart(Part):
    type: Literal["text"]
    text: Text
    cache_control: Any = None


_Content = Annotated[list[_TextPart], as_parts("text")]


class _AssistantPart(LoosePart):
    type: Literal["text", "refusal"]
    text: Text = ""
    refusal: Text = ""


class _ToolPart(LoosePart):
    type: str
    text: ToolText = UNSEEN


class _Instruction(Part):
    role: Literal["system", "developer"]
    content: _Content
    name: str | None = None
    cache_control: Any = None

    def normalised(self) -> ChatMessage:
        return ChatMessage(role="system", content="".join(part.text for part in self.content))


class _User(Part):
    role: Literal["user"]
    content: _Content
    name: str | None = None
    cache_control: Any = None

    def normalised(self) -> ChatMessage:
        return ChatMessage(role="user", content="".join(part.text for part in self.content))


class _CalledFunction(LoosePart):
    name: Text
    arguments: Text = "{}"


class _Called(LoosePart):
    id: Text
    type: Literal["function"] = "function"
    function: _CalledFunction


class _Assistant(LoosePart):
    role: Literal["assistant"]
    content: Annotated[list[_AssistantPart], as_parts("text")] = Field(default_factory=list)
    refusal: Text = ""
    reasoning_content: Text = ""
    reasoning: Text = ""
    tool_calls: list[_Called] = Field(default_factory=list)

    def normalised(self) -> ChatMessage:
        text = "".join(part.text or part.refusal for part in self.content) or self.refusal
        message = ChatMessage(role="assistant", content=text)
        if thoughts := self.reasoning_content or self.reasoning:
            message["reasoning"] = thoughts
        if self.tool_calls:
            message["tool_calls"] = [
                ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
                for call in self.tool_calls
            ]
        return message


class _ToolResult(Part):
    role: Literal["tool"]
    content: Annotated[list[_ToolPart], as_parts("text")]
    tool_call_id: Text
    name: Text | None = None
    cache_control: Any = None

    def normalised(self) -> ChatMessage:
        text = "".join(part.text if part.type == "text" else UNSEEN for part in self.content)
        message = ChatMessage(role="tool", content=text, tool_call_id=self.tool_call_id)
        return {**message, "name": self.name} if self.name else message


_Message = Annotated[_Instruction | _User | _Assistant | _ToolResult, Discriminator("role")]


class _Function(Part):
    name: Text = Field(min_length=1)
    description: Text = ""
    parameters: Schema = Field(default_factory=dict)
    strict: bool = False  # a promise about the arguments, which an unconstrained policy does not give


class _FunctionTool(Part):
    type: Literal["function"]
    function: _Function
    cache_control: Any = None

    def normalised(self) -> Tool:
        return as_tool(self.function.name, self.function.description, self.function.parameters)


class _StreamOptions(LoosePart):
    include_usage: bool = False


class _TemplateOptions(Part):
    enable_thinking: bool | None = None
    thinking: bool | None = None


class _Request(Part):
    messages: list[_Message] = Field(min_length=1)
    model: ModelName = MODEL_ID
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    stop: Text | list[Text] = Field(default_factory=list)
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    logprobs: bool = False
    tools: list[_FunctionTool] = Field(default_factory=list)
    tool_choice: Any = None
    reasoning_effort: Text | None = None
    chat_template_kwargs: _TemplateOptions = _TemplateOptions()

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return tuple(s for s in ([self.stop] if isinstance(self.stop, str) else self.stop) if s)

    @property
    def token_limit(self) -> int | None:
        return min((n for n in (self.max_tokens, self.max_completion_tokens) if n is not None), default=None)

    @property
    def thinking(self) -> bool | None:
        options = self.chat_template_kwargs
        for said in (options.enable_thinking, options.thinking):
            if said is not None:
                return said
        return None if self.reasoning_effort is None else self.reasoning_effort != "none"


@register_surface("/v1/chat/completions")
class ChatSurface(Surface):
    """Chat completions, with the `reasoning_content` that open models' servers have added to them.

    `max_tokens` and `max_completion_tokens` both limit the answer. Streams carry log-probabilities, if asked for, in
    their last chunk but one: those of all sampled tokens, not only of the visible text.
    """

    keep_alive = frame(
        {
            "id": "chatcmpl-waits",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": MODEL_ID,
            "choices": [{"index": 0, "delta": {}, "finish_reason": None}],
        }
    )

    def parse(self, body: Any, *, query: Mapping[str, str]) -> Call:
        request = read(_Request, served_fields(body, CHAT))
        may_call = free_choice(request.tool_choice)
        tools = require_distinct([tool.normalised() for tool in request.tools])
        return Call(
            messages=conversation((message.normalised() for message in request.messages), param="messages"),
            tools=tools if may_call else (),
            max_tokens=request.token_limit,
            stop=request.stop_strings,
            temperature=request.temperature,
            top_p=request.top_p,
            stream=request.stream,
            logprobs=request.logprobs,
            thinking=request.thinking,
            include_usage=request.stream_options.include_usage,
            model=request.model,
        )

    def complete(self, call: Call, answer: Answer, codec: Decoder) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["content"] = answer.text or None
            message["tool_calls"] = [
                ChatCompletionMessageFunctionToolCall(
                    id=told["id"],
                    type="function",
                    function=Function(name=told["name"], arguments=told["arguments"]),
                )
                for told in answer.tool_calls
            ]
        completion = ChatCompletion(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            object="chat.completion",
            created=int(time.time()),
            model=call.model,
            choices=[
                Choice(
                    index=0,
                    finish_reason=answer.finish,
                    message=ChatCompletionMessage(**message),
                    logprobs=ChoiceLogprobs(content=_logprobs(answer, codec)) if call.logprobs else None,
                )
            ],
            usage=_usage(answer),
        )
        return completion.model_dump(mode="json", exclude_unset=True)

    def events(self, call: Call, answer: Answer, codec: Decoder) -> Iterator[bytes]:
        stream_id, created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())

        def chunk(choices: list[ChunkChoice], **rest: Any) -> bytes:
            data = ChatCompletionChunk(
                id=stream_id,
                object="chat.completion.chunk",
                created=created,
                model=call.model,
                choices=choices,
                **rest,
            )
            return frame(data.model_dump(mode="json", exclude_unset=True))

        # With usage asked for, all chunks but the last one carry it as null.
        no_usage: dict[str, Any] = {"usage": None} if call.include_usage else {}

        def delta(finish: Any = None, logprobs: ChunkLogprobs | None = None, **fields: Any) -> bytes:
            choice = ChunkChoice(index=0, delta=ChoiceDelta(**fields), finish_reason=finish, logprobs=logprobs)
            return chunk([choice], **no_usage)

        yield delta(role="assistant", content="")
        for piece in pieces(answer.reasoning):
            yield delta(reasoning_content=piece)
        for piece in pieces(answer.text):
            yield delta(content=piece)
        for index, told in enumerate(answer.tool_calls):
            opening: dict[str, Any] = {"name": told["name"], "arguments": ""}
            yield delta(tool_calls=[{"index": index, "id": told["id"], "type": "function", "function": opening}])
            for piece in pieces(told["arguments"]):
                yield delta(tool_calls=[{"index": index, "function": {"arguments": piece}}])
        logprobs = ChunkLogprobs(content=_logprobs(answer, codec)) if call.logprobs else None
        yield delta(finish=answer.finish, logprobs=logprobs)
        if call.include_usage:
            yield chunk([], usage=_usage(answer))
        yield frame("[DONE]")

    def error(self, status: int, message: str, code: str, param: str | None = None) -> dict[str, Any]:
        return openai_error(status, message, code, param)

    def error_event(self, status: int, message: str, code: str, param: str | None = None) -> bytes:
        return frame(openai_error(status, message, code, param))


def openai_error(status: int, message: str, code: str, param: str | None) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _usage(answer: Answer) -> CompletionUsage:
    sampled = len(answer.generation.token_ids)
    return CompletionUsage(
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=sampled,
        total_tokens=answer.prompt_tokens + sampled,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=answer.cached_tokens),
    )


def _logprobs(answer: Answer, codec: Decoder) -> list[ChatCompletionTokenLogprob]:
    content = []
    for token_id, logprob in zip(answer.generation.token_ids, answer.generation.logprobs, strict=True):
        token = codec.decode([token_id])
        content.append(
            ChatCompletionTokenLogprob(
                token=token, bytes=list(token.encode("utf-8", "replace")), logprob=logprob, top_logprobs=[]
            )
        )
    return content
