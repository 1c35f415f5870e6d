"""A conversation in the one form that all surfaces share; what the codec renders and the capture compares."""

from typing import Any, Required, TypedDict


class ToolCall(TypedDict):
    """One call of a tool. `arguments` is JSON text, as the client is told it."""

    id: str
    name: str
    arguments: str


class Tool(TypedDict):
    """A tool that the client offers. `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class ChatMessage(TypedDict, total=False):
    """One message. `content` is its text, joined from parts; "" if it has none."""

    role: Required[str]
    """system, user, assistant or tool."""
    content: Required[str]
    reasoning: str
    """What an assistant thought before it answered."""
    tool_calls: list[ToolCall]
    tool_call_id: str
    """Of a tool's message: the call that it answers."""
    name: str
    """Of a tool's message: the tool, where it is known."""
