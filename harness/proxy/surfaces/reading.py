"""What the surfaces share in reading requests: checked pieces, and the way to a message that names what is wrong."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StringConstraints,
    ValidationError,
    model_validator,
)

from harness.proxy.conversation import ChatMessage, Tool
from harness.proxy.surfaces.base import RequestError

UNSEEN = "[an image or a file, which cannot be shown to this model]"
"""What the policy reads in place of a tool's result that is no text.

A user's image is refused, but a tool's result is the policy's own doing: a picture that it opened must not end the
trial.
"""


class Part(BaseModel):
    """A piece of a request. Null fields count as absent, unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


class LoosePart(Part):
    """A piece that clients send back, with whatever they keep beside it: unknown fields are left out of account."""

    model_config = ConfigDict(extra="ignore")


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the text holds half a surrogate pair; send whole characters") from error
    return text


# JSON may carry what no tokenizer takes; found only there, it would look like a fault of the proxy.
Text = Annotated[str, AfterValidator(_encodable)]

# Told again in each frame of a stream, so a long one would be multiplied.
ModelName = Annotated[str, StringConstraints(max_length=256), AfterValidator(_encodable)]


def _mended(value: Any) -> Any:
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value


# Agents cut what their tools print, some of them in the middle of a pair.
ToolText = Annotated[str, BeforeValidator(_mended)]


def _encodable_throughout(schema: dict[str, Any]) -> dict[str, Any]:
    _encodable(json.dumps(schema, ensure_ascii=False))
    return schema


# Shown to the policy as it is, texts and all.
Schema = Annotated[dict[str, Any], AfterValidator(_encodable_throughout)]

P = TypeVar("P", bound=BaseModel)


def read(model: type[P], fields: Mapping[str, Any]) -> P:
    """`fields` as a `model`.

    Raises:
        RequestError: one of them is missing, wrong or not supported; it is named.
    """
    try:
        return model.model_validate(dict(fields))
    except ValidationError as error:
        raise _as_request_error(error, fields) from error


def _as_request_error(error: ValidationError, fields: Mapping[str, Any]) -> RequestError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = _path(first["loc"], fields)
    field = path.split(".")[0]
    match first["type"]:
        case "extra_forbidden":
            return RequestError(
                f"{path}: this field is not supported; leave it out", code="unsupported_parameter", param=field
            )
        case "missing":
            return RequestError(f"{path}: this field is required", code="missing_required_parameter", param=field)
        case "literal_error" | "union_tag_invalid":
            return RequestError(f"{path}: not supported: {first['msg']}", code="unsupported_value", param=field)
        case _:
            return RequestError(f"{path}: {first['msg']}", code="invalid_value", param=field)


def _path(loc: Sequence[int | str], fields: Any) -> str:
    """The place of a fault as the client would write it; pydantic's own has the names of the union's members in it."""
    parts: list[str] = []
    here = fields
    for at, part in enumerate(loc):
        known = isinstance(here, dict) and part in here
        known = known or (isinstance(here, list) and isinstance(part, int) and part < len(here))
        if known:
            here = here[part]
        elif at < len(loc) - 1 or not isinstance(here, dict):
            continue
        parts.append(str(part))
    return ".".join(parts)


def as_parts(kind: str) -> BeforeValidator:
    """Content that is a mere string, as the one text part of type `kind` that it stands for."""
    return BeforeValidator(lambda value: [{"type": kind, "text": value}] if isinstance(value, str) else value)


def to_json(value: Any) -> str:
    """`value` as JSON text that can be encoded."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def as_tool(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> Tool:
    """A tool; one without parameters takes an empty object."""
    schema = dict(parameters) if parameters else {"type": "object", "properties": {}}
    return Tool(name=name, description=description or "", parameters=schema)


def conversation(messages: Iterable[ChatMessage], *, param: str) -> tuple[ChatMessage, ...]:
    """The messages as templates want them: one system message at the start, and tools' results with the tools' names.

    Raises:
        RequestError: there is none that the policy could answer.
    """
    joined: list[ChatMessage] = []
    instructions: list[str] = []
    names: dict[str, str] = {}
    for message in messages:
        if message["role"] == "system" and len(joined) == bool(instructions):
            # Their texts are joined once, at the end: there may be very many.
            instructions.append(message["content"])
            joined = [message]
            continue
        names |= {call["id"]: call["name"] for call in message.get("tool_calls", [])}
        if message["role"] == "tool" and "name" not in message and message.get("tool_call_id") in names:
            message = {**message, "name": names[message["tool_call_id"]]}
        joined.append(message)
    if len(instructions) > 1:
        joined[0] = ChatMessage(role="system", content="\n\n".join(text for text in instructions if text))
    if not joined:
        raise RequestError(f"{param}: there is no message to answer", code="invalid_value", param=param)
    if joined[-1]["role"] == "assistant":
        raise RequestError(
            f"{param}: the last message is the assistant's; continuing it is not supported, end with a user message "
            "or a tool's result",
            code="unsupported_value",
            param=param,
        )
    return tuple(joined)


def require_distinct(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """The tools.

    Raises:
        RequestError: two of them have one name.
    """
    names: set[str] = set()
    for tool in tools:
        name = tool["name"]
        if name in names:
            raise RequestError(f"tools: there are two tools named {name!r:.200}", code="invalid_value", param="tools")
        names.add(name)
    return tuple(tools)


def free_choice(choice: Any, *, auto: str = "auto", none: str = "none") -> bool:
    """Whether the policy may call tools, from a tool_choice that is absent, `auto` or `none`.

    Raises:
        RequestError: the choice would force a call.
    """
    if isinstance(choice, Mapping) and isinstance(choice.get("type"), str):
        kind: Any = choice["type"]
    else:
        kind = choice
    if kind in (None, auto, none):
        return kind != none
    raise RequestError(
        f"tool_choice: {choice!r:.100} is not supported: a forced call would bend the distribution that is trained on; "
        f"use {auto!r} or {none!r}",
        code="unsupported_value",
        param="tool_choice",
    )
