"""Whatever JSON a client sends, and whatever the policy says, a surface answers or refuses; it never breaks."""

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.surfaced import Codes, answer

from harness.proxy.surfaces.base import RequestError
from harness.proxy.surfaces.registry import SURFACES

BODIES = {
    "/v1/chat/completions": {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "ok"}]},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "stop": ["x"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "tool_choice": "auto",
    },
    "/v1/responses": {
        "model": "m",
        "instructions": "s",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": [], "encrypted_content": "aGk="},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "ok"},
            {"type": "custom_tool_call", "call_id": "b", "name": "f", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "ok"}]},
        ],
        "tools": [
            {"type": "function", "name": "f", "parameters": {}},
            {"type": "custom", "name": "g", "format": {"type": "text"}},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "h"}]},
            {"type": "web_search"},
        ],
        "metadata": {"k": "v"},
        "reasoning": {"effort": "low"},
        "include": ["reasoning.encrypted_content"],
        "text": {"format": {"type": "text"}},
    },
    "/v1/messages": {
        "model": "m",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "ok"}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "stop_sequences": ["x"],
        "output_config": {"effort": "low"},
    },
}
TEXTS = st.text(max_size=4) | st.sampled_from(
    ["user", "assistant", "tool", "text", "image", "function", "custom", "namespace", "message", "none", "\ud800", "a"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def places(value, path=()):
    """The paths to all parts of a JSON value."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


@st.composite
def mangled(draw, body):
    """A body that is served, with some of its parts replaced, removed or doubled, or with new fields."""
    body = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([p for p in places(body) if p]))
        holder = body
        for key in path[:-1]:
            holder = holder[key]
        match draw(st.sampled_from(["replace", "remove", "double"])):
            case "replace":
                holder[path[-1]] = draw(JSON)
            case "remove":
                del holder[path[-1]]
            case "double" if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[path[-1]]))
            case _:
                holder[draw(TEXTS)] = draw(JSON)
        if not body:
            break
    return body


ANSWERS = [
    answer(""),
    answer("half \ud83d", finish="length", reasoning="\udc00"),
    answer("t", reasoning="r", calls=[("a", "f", '{"x": "\\ud800"}'), ("b", "g", '{"input": 3}'), ("c", "n__h", "{}")]),
]


def exercise(route, body):
    surface = SURFACES[route]
    try:
        call = surface.parse(body, query={})
    except RequestError as error:
        json.dumps(surface.error(error.status, str(error), error.code, error.param)).encode()
        assert str(error)
        return False
    for given_answer in ANSWERS:
        json.dumps(surface.complete(call, given_answer, Codes())).encode()
        for frame in surface.events(call, given_answer, Codes()):
            assert frame.endswith(b"\n\n") and b"\n\n" not in frame[:-2]
    json.dumps([call.messages, call.tools], ensure_ascii=False).encode()
    return True


@pytest.mark.parametrize("route", SURFACES)
def test_what_the_fuzz_starts_from_is_served(route):
    assert exercise(route, BODIES[route])


@pytest.mark.parametrize("route", SURFACES)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(data=st.data())
def test_a_mangled_body_is_served_or_refused(route, data):
    exercise(route, data.draw(mangled(BODIES[route])))
