"""Which fields of each API are served, which are accepted without effect, and which are refused, and why.

Every field that the vendors' own clients can send is decided here; a test holds the tables against their types. What is
in no table is refused by its name. "Harmless" means that leaving the field out of account changes nothing that the
client could not have met otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.proxy.surfaces.base import RequestError


@dataclass(frozen=True)
class Used:
    """Read by the surface."""


@dataclass(frozen=True)
class Ignored:
    """Accepted, whatever its value; `why` that is harmless."""

    why: str


@dataclass(frozen=True)
class Only:
    """Accepted with one of these values, which ask for nothing out of the ordinary."""

    values: tuple[Any, ...]
    why: str


@dataclass(frozen=True)
class Refused:
    """Refused by name; `why`, and what to do instead."""

    why: str


Rule = Used | Ignored | Only | Refused

_USED = Used()
_ABOUT_THE_CALLER = Ignored("says who asks, or how the vendor should bill and store it")
_CACHING = Ignored("the captured conversation is the cache; no hint is needed")
_SPEED = Ignored("there is one way to serve it")
_SEED = Ignored("an answer is never repeatable: the weights change between requests")
_LENGTH_HINT = Ignored("a hint to hosted models only")
_ONE_MODEL = Ignored("there is one policy, and nothing to fall back to")
_PARALLEL = Ignored("the policy calls as many tools as it likes; whoever offers tools carries out what is called")
_DISTRIBUTION = "it would bend the distribution that is trained on; leave it out"
_TEXT_ONLY = "the policy reads and writes plain text only"
_STATELESS = "nothing is stored; send the whole conversation with each request"
_HOSTED = "nothing is run here on the policy's behalf; offer function tools that the client runs"

CHAT: Mapping[str, Rule] = {
    "messages": _USED,
    "model": _USED,
    "max_tokens": _USED,
    "max_completion_tokens": _USED,
    "temperature": _USED,
    "top_p": _USED,
    "stop": _USED,
    "stream": _USED,
    "stream_options": _USED,
    "logprobs": _USED,
    "tools": _USED,
    "tool_choice": _USED,
    "reasoning_effort": _USED,
    "chat_template_kwargs": _USED,
    "parallel_tool_calls": _PARALLEL,
    "user": _ABOUT_THE_CALLER,
    "metadata": _ABOUT_THE_CALLER,
    "store": _ABOUT_THE_CALLER,
    "safety_identifier": _ABOUT_THE_CALLER,
    "service_tier": _SPEED,
    "prediction": _SPEED,
    "prompt_cache_key": _CACHING,
    "prompt_cache_options": _CACHING,
    "prompt_cache_retention": _CACHING,
    "seed": _SEED,
    "verbosity": _LENGTH_HINT,
    "n": Only((1,), "one conversation has one continuation; ask again for another"),
    "top_logprobs": Only((0,), "only the sampled token's log-probability is known"),
    "frequency_penalty": Only((0, 0.0), _DISTRIBUTION),
    "presence_penalty": Only((0, 0.0), _DISTRIBUTION),
    "repetition_penalty": Only((1, 1.0), _DISTRIBUTION),
    "min_p": Only((0, 0.0), _DISTRIBUTION),
    "top_k": Only((-1, 0), _DISTRIBUTION),
    "logit_bias": Only(({},), _DISTRIBUTION),
    "response_format": Only(({"type": "text"},), _DISTRIBUTION),
    "modalities": Only((["text"],), _TEXT_ONLY),
    "audio": Refused(_TEXT_ONLY),
    "functions": Refused("use tools and tool_choice instead"),
    "function_call": Refused("use tools and tool_choice instead"),
    "web_search_options": Refused(_HOSTED),
    "moderation": Refused(_HOSTED),
}

RESPONSES: Mapping[str, Rule] = {
    "input": _USED,
    "instructions": _USED,
    "model": _USED,
    "max_output_tokens": _USED,
    "temperature": _USED,
    "top_p": _USED,
    "stream": _USED,
    "tools": _USED,
    "tool_choice": _USED,
    "reasoning": _USED,
    "include": _USED,
    "text": _USED,
    "metadata": _USED,
    "parallel_tool_calls": _PARALLEL,
    "user": _ABOUT_THE_CALLER,
    "store": _ABOUT_THE_CALLER,
    "safety_identifier": _ABOUT_THE_CALLER,
    "client_metadata": _ABOUT_THE_CALLER,
    "access_programs": _ABOUT_THE_CALLER,
    "service_tier": _SPEED,
    "background_options": _SPEED,
    "prompt_cache_key": _CACHING,
    "prompt_cache_options": _CACHING,
    "prompt_cache_retention": _CACHING,
    "seed": _SEED,
    "stream_options": Ignored("it chooses whether events are padded; they are not"),
    "max_tool_calls": Ignored("it counts tools that the server runs, of which there are none"),
    "truncation": Ignored("nothing is ever cut from a conversation; one that is too long is refused"),
    "top_logprobs": Only((0,), "log-probabilities are told by /v1/chat/completions alone"),
    "background": Only((False,), _STATELESS),
    "context_management": Only(([],), "the client compacts its conversation by itself"),
    "previous_response_id": Refused(_STATELESS),
    "conversation": Refused(_STATELESS),
    "prompt": Refused(_STATELESS),
    "image": Refused(_TEXT_ONLY),
    "moderation": Refused(_HOSTED),
}

MESSAGES: Mapping[str, Rule] = {
    "messages": _USED,
    "model": _USED,
    "max_tokens": _USED,
    "system": _USED,
    "stop_sequences": _USED,
    "stream": _USED,
    "temperature": _USED,
    "top_p": _USED,
    "thinking": _USED,
    "tools": _USED,
    "tool_choice": _USED,
    "output_config": _USED,
    "metadata": _ABOUT_THE_CALLER,
    "betas": _ABOUT_THE_CALLER,
    "billing_policy": _ABOUT_THE_CALLER,
    "diagnostics": _ABOUT_THE_CALLER,
    "user_profile_id": _ABOUT_THE_CALLER,
    "workspace_id": _ABOUT_THE_CALLER,
    "inference_geo": _ABOUT_THE_CALLER,
    "service_tier": _SPEED,
    "speed": _SPEED,
    "fallbacks": _ONE_MODEL,
    "fallback_credit_token": _ONE_MODEL,
    "cache_control": _CACHING,
    "top_k": Ignored("the session's own sampling wins, as over temperature and top_p"),
    "context_management": Ignored("nothing is ever cut from a conversation; one that is too long is refused"),
    "compaction": Refused("the client compacts its conversation by itself"),
    "container": Refused(_HOSTED),
    "mcp_servers": Refused(_HOSTED),
    "thread": Refused(_STATELESS),
    "output_format": Refused(_DISTRIBUTION),
}


_DEPTH = 100
"""Levels of a request. Real ones have a dozen; code that walks down a thousand would break, as if by our fault."""

_VALUES = 50_000
"""Values in the lists and objects of a request. A long conversation has a few thousand; checking
millions of tiny ones would stop all sessions for as long, and complaining of each would take the host's memory."""


def served_fields(body: Any, table: Mapping[str, Rule]) -> dict[str, Any]:
    """Those fields of a decoded JSON body that the surface reads; null counts as absent.

    Raises:
        RequestError: the body is no object, is nested too deeply, has too many values, or a field that is not
            supported.
    """
    if not isinstance(body, Mapping):
        raise RequestError("the request body must be a JSON object", code="invalid_value")
    _require_modest(body)
    served = {}
    for name, value in body.items():
        if value is None:
            continue
        match table.get(name):
            case Used():
                served[name] = value
            case Ignored():
                pass
            case Only(values, why):
                if not any(type(value) is type(v) and value == v for v in values):
                    wanted = " or ".join(repr(v) for v in values)
                    raise RequestError(
                        f"{name}: only {wanted} is supported: {why}", code="unsupported_value", param=name
                    )
            case Refused(why):
                raise RequestError(
                    f"{name}: this field is not supported: {why}", code="unsupported_parameter", param=name
                )
            case None:
                raise RequestError(
                    f"{name}: this field is not supported; leave it out", code="unsupported_parameter", param=name
                )
    return served


def _require_modest(body: Mapping[str, Any]) -> None:
    layer: list[Any] = [body]
    left = _VALUES
    for _ in range(_DEPTH):
        left -= sum(len(container) for container in layer)
        if left < 0:
            raise RequestError(f"the request body has more than {_VALUES} values", code="invalid_value")
        layer = [
            inner
            for container in layer
            for inner in (container.values() if isinstance(container, Mapping) else container)
            if isinstance(inner, Mapping | list)
        ]
        if not layer:
            return
    raise RequestError("the request body is nested too deeply", code="invalid_value")
