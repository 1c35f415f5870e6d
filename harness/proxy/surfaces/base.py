"""What every API that the proxy speaks has to do: read a request, tell an answer, stream it, and name an error."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from harness.proxy.conversation import ChatMessage, Tool, ToolCall
from trainer.rollout import Generation

MODEL_ID = "policy"
"""The one model that is served; clients may ask for it by any name."""

_PIECE = 2048
"""Characters of an answer in one frame: few frames, yet no line that a client's line reader would refuse."""

SURFACES: "dict[str, Surface]" = {}
"""The surfaces by route, filled by `harness.proxy.surfaces.registry`, whose import takes seconds."""


class RequestError(ValueError):
    """A request that cannot be served. Each surface tells it in its own shape; `param` is the offending field."""

    def __init__(self, message: str, *, code: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.status = status


class Decoder(Protocol):
    """What a surface needs of the codec."""

    def decode(self, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class ToldTool:
    """How a client knows a tool that the policy is shown as a plain function under a name of its own."""

    name: str
    namespace: str | None = None
    custom: bool = False
    """Its input is plain text; the policy is shown a function with the one argument `input`."""


@dataclass(frozen=True)
class Call:
    """A request, whichever API it came by.

    `tools` is empty if the client forbids calls. `temperature` and `top_p` are what it asked for; the session's own
    win. `thinking` is None where it did not say. `model` is the name it used, told back to it. `told_tools` are the
    tools that it knows otherwise than the policy, by the policy's name. `echo` holds fields that the answer repeats.
    """

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    stream: bool = False
    logprobs: bool = False
    thinking: bool | None = None
    include_usage: bool = False
    model: str = MODEL_ID
    told_tools: Mapping[str, ToldTool] = field(default_factory=dict)
    echo: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """A finished answer. `stop_string` is the one that ended it, if one did; `text` ends before it.

    `prompt_tokens` counts the whole prompt, `cached_tokens` those of it that the session had captured before.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish: Literal["stop", "length", "tool_calls"]
    stop_string: str | None
    prompt_tokens: int
    cached_tokens: int
    generation: Generation


class Surface(ABC):
    """One API. Stateless: each request stands for itself."""

    keep_alive: ClassVar[bytes]
    """A frame that says nothing, sent while the policy thinks so that a client does not lose patience.

    It is an event of the API where there is one: many clients' clocks do not hear comments. A client that hangs up and
    asks again gets an answer of those that come in time, and the policy is trained on these alone.
    """

    @abstractmethod
    def parse(self, body: Any, *, query: Mapping[str, str]) -> Call:
        """The call in a decoded JSON body.

        Raises:
            RequestError: a field is missing, wrong or not supported; it is named.
        """

    @abstractmethod
    def complete(self, call: Call, answer: Answer, codec: Decoder) -> dict[str, Any]:
        """The answer as one JSON object."""

    @abstractmethod
    def events(self, call: Call, answer: Answer, codec: Decoder) -> Iterator[bytes]:
        """The answer as a stream: whole frames of server-sent events, in the order that clients expect."""

    @abstractmethod
    def error(self, status: int, message: str, code: str, param: str | None = None) -> dict[str, Any]:
        """The JSON body of an answer with the HTTP status `status`."""

    @abstractmethod
    def error_event(self, status: int, message: str, code: str, param: str | None = None) -> bytes:
        """What ends a stream that has begun and cannot be finished: frames by which the client knows that it failed."""


def register_surface(route: str) -> Callable[[type[Surface]], type[Surface]]:
    """Serve the decorated class under `route`."""

    def register(surface: type[Surface]) -> type[Surface]:
        SURFACES[route] = surface()
        return surface

    return register


def frame(data: Mapping[str, Any] | str, event: str | None = None) -> bytes:
    """One server-sent event; `event` names it where the API does."""
    # ASCII: what a tokenizer decodes may hold what UTF-8 cannot carry, and JSON's own escapes can.
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return (f"event: {event}\n" if event else "").encode() + f"data: {text}\n\n".encode()


def pieces(text: str) -> Iterator[str]:
    """`text` in pieces for one frame each; none if it is empty."""
    return (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
