"""What a request of OpenAI's responses API says: its items as messages, its tools as the policy is shown them."""

import base64
import binascii
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from harness.proxy.conversation import ChatMessage, Tool, ToolCall
from harness.proxy.surfaces.base import MODEL_ID, ToldTool
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
    to_json,
)


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


class ResponsesRequest(Part):
    """The fields that are used."""

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


def messages_of(items: list[Any]) -> Iterator[ChatMessage]:
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


def shown_tools(tools: list[Any]) -> list[tuple[Tool, ToldTool]]:
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


def sealed(reasoning: str) -> str:
    """Reasoning as the opaque text that clients keep: not secret, only in their way."""
    return base64.b64encode(reasoning.encode("utf-8", "replace")).decode()


def _opened(given: str) -> str:
    try:
        return base64.b64decode(given, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""  # sealed by another server, whose thoughts are not ours
