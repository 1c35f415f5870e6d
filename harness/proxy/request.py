"""The part of OpenAI's chat-completions request that a session serves; everything else is refused by name."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from harness.proxy.codec import ChatMessage


class RequestError(ValueError):
    """A request that cannot be served, in the words of OpenAI's error object."""

    def __init__(self, message: str, *, code: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.status = status


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the text holds half a surrogate pair; send whole characters") from error
    return text


# JSON may carry what no tokenizer takes; found only there, it would look like a fault of the proxy.
_Text = Annotated[str, AfterValidator(_encodable)]


class _TextPart(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: _Text


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: _Text | list[_TextPart]

    def normalised(self) -> ChatMessage:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return ChatMessage(role=self.role, content=text)


class ChatRequest(BaseModel):
    """A chat-completions request.

    `temperature` and `top_p` are accepted but the session's own win, since the trainer divides its logits by one
    temperature. `model` is not looked at: there is one policy. `seed` is refused, because a rollout must not pretend
    to be repeatable across weight versions.
    """

    model_config = ConfigDict(extra="forbid")

    messages: list[_Message] = Field(min_length=1)
    model: str = ""
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stop: _Text | list[_Text] | None = None
    n: Literal[1] = 1
    stream: Literal[False] = False
    logprobs: bool = False
    top_logprobs: Literal[0] = 0
    user: str | None = None

    @property
    def chat_messages(self) -> list[ChatMessage]:
        return [message.normalised() for message in self.messages]

    @property
    def stop_strings(self) -> tuple[str, ...]:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(s for s in stop if s)

    @property
    def token_limit(self) -> int | None:
        limits = [n for n in (self.max_tokens, self.max_completion_tokens) if n is not None]
        return min(limits) if limits else None


def parse_request(body: Any) -> ChatRequest:
    """The request in a decoded JSON body. Fields that are null count as absent, as in OpenAI's API.

    Raises:
        RequestError: a field is missing, wrong or not supported; it is named.
    """
    if not isinstance(body, Mapping):
        raise RequestError("the request body must be a JSON object", code="invalid_value")
    try:
        request = ChatRequest.model_validate(_without_nulls(body))
    except ValidationError as error:
        raise _as_request_error(error) from error
    if request.messages[-1].role == "assistant":
        raise RequestError(
            "messages: the last message is the assistant's; continuing it is not supported, end with a user message",
            code="unsupported_value",
            param="messages",
        )
    return request


def _without_nulls(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body without null fields, its messages likewise: clients send their own answers back with many of them."""
    fields = {key: value for key, value in body.items() if value is not None}
    if isinstance(messages := fields.get("messages"), list):
        fields["messages"] = [
            {k: v for k, v in message.items() if v is not None} if isinstance(message, dict) else message
            for message in messages
        ]
    return fields


def _as_request_error(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = ".".join(str(part) for part in first["loc"])
    field = str(first["loc"][0]) if first["loc"] else param
    match first["type"]:
        case "extra_forbidden":
            return RequestError(
                f"{param}: this field is not supported; leave it out", code="unsupported_parameter", param=field
            )
        case "missing":
            return RequestError(f"{param}: this field is required", code="missing_required_parameter", param=field)
        case "literal_error":
            return RequestError(f"{param}: not supported: {first['msg']}", code="unsupported_value", param=field)
        case _:
            return RequestError(f"{param}: {first['msg']}", code="invalid_value", param=field)
