"""Which fields are served: the tables against the types of the vendors' own clients."""

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from harness.proxy.surfaces.base import RequestError
from harness.proxy.surfaces.fields import CHAT, MESSAGES, RESPONSES, Only, Refused, Used, served_fields
from harness.proxy.surfaces.registry import SURFACES

CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RESPONSES_BODY = {"model": "m", "input": "hi"}
MESSAGES_BODY = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
BODIES = {"/v1/chat/completions": CHAT_BODY, "/v1/responses": RESPONSES_BODY, "/v1/messages": MESSAGES_BODY}


@pytest.mark.parametrize(
    ("table", "types"),
    [
        (CHAT, [completion_create_params.CompletionCreateParamsBase]),
        (RESPONSES, [response_create_params.ResponseCreateParamsBase]),
        (
            MESSAGES,
            [
                message_create_params.MessageCreateParamsBase,
                beta.MessageCreateParamsBase,
                message_count_tokens_params.MessageCountTokensParams,
            ],
        ),
    ],
)
def test_every_field_that_the_vendors_clients_can_send_is_decided(table, types):
    sent = {name for kind in types for name in kind.__annotations__} | {"stream"}
    assert sent <= set(table), "the vendor's client has new fields; say what becomes of them"


@pytest.mark.parametrize(("route", "table"), [(r, t) for r, t in zip(BODIES, (CHAT, RESPONSES, MESSAGES), strict=True)])
def test_fields_are_refused_or_accepted_as_the_table_says(route, table):
    surface = SURFACES[route]
    for name, rule in table.items():
        match rule:
            case Used():
                continue
            case Refused():
                with pytest.raises(RequestError, match=rf"^{name}: .+ not supported: .+") as error:
                    surface.parse(BODIES[route] | {name: {}}, query={})
                assert (error.value.param, error.value.code, error.value.status) == (name, "unsupported_parameter", 400)
            case Only(values):
                with pytest.raises(RequestError, match=f"^{name}: only ") as error:
                    surface.parse(BODIES[route] | {name: "other"}, query={})
                assert (error.value.param, error.value.code) == (name, "unsupported_value")
                for value in values:
                    surface.parse(BODIES[route] | {name: value}, query={})
            case _:
                surface.parse(BODIES[route] | {name: {"any": ["thing"]}}, query={})
        surface.parse(BODIES[route] | {name: None}, query={})


@pytest.mark.parametrize("route", BODIES)
def test_a_field_that_nobody_knows_is_refused_by_name(route):
    with pytest.raises(RequestError, match=r"^best_of: this field is not supported; leave it out") as error:
        SURFACES[route].parse(BODIES[route] | {"best_of": 3}, query={})
    assert (error.value.param, error.value.code) == ("best_of", "unsupported_parameter")


@pytest.mark.parametrize("body", [[], "text", None, 3])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(RequestError, match="must be a JSON object"):
        served_fields(body, CHAT)


@pytest.mark.parametrize("route", BODIES)
def test_a_body_that_is_nested_too_deeply_is_refused(route):
    deep = {}
    for _ in range(950):
        deep = {"a": [deep]}
    with pytest.raises(RequestError, match="nested too deeply"):
        SURFACES[route].parse(BODIES[route] | {"tools": [deep]}, query={})


def test_true_is_not_the_number_one():
    with pytest.raises(RequestError, match=r"^n: only 1 "):
        served_fields({"n": True}, CHAT)


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("said", ["required", {"type": "function", "function": {"name": "f"}}, {"type": "any"}, 7])
def test_a_forced_call_is_refused_with_the_reason(route, said):
    with pytest.raises(RequestError, match=r"^tool_choice: .*bend the distribution") as error:
        SURFACES[route].parse(BODIES[route] | {"tool_choice": said}, query={})
    assert (error.value.param, error.value.code) == ("tool_choice", "unsupported_value")


@pytest.mark.parametrize("route", BODIES)
def test_two_tools_of_one_name_are_refused(route):
    tool = {
        "/v1/chat/completions": {"type": "function", "function": {"name": "run"}},
        "/v1/responses": {"type": "function", "name": "run"},
        "/v1/messages": {"name": "run", "input_schema": {}},
    }[route]
    with pytest.raises(RequestError, match="two tools named 'run'"):
        SURFACES[route].parse(BODIES[route] | {"tools": [tool, tool]}, query={})


@pytest.mark.parametrize("route", BODIES)
def test_half_a_character_in_a_tools_schema_is_refused(route):
    schema = {"type": "object", "properties": {"x": {"description": "\ud800"}}}
    tool = {
        "/v1/chat/completions": {"type": "function", "function": {"name": "run", "parameters": schema}},
        "/v1/responses": {"type": "function", "name": "run", "parameters": schema},
        "/v1/messages": {"name": "run", "input_schema": schema},
    }[route]
    with pytest.raises(RequestError, match=r"^tools.*half a surrogate pair"):
        SURFACES[route].parse(BODIES[route] | {"tools": [tool]}, query={})


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("many", [{"metadata": {str(i): "" for i in range(60_000)}}, {"tools": [[]] * 60_000}])
def test_a_body_of_very_many_values_is_refused_before_they_are_looked_at(route, many):
    """Each would bring a complaint of its own, which together are many times larger than the body."""
    with pytest.raises(RequestError, match="more than 50000 values"):
        SURFACES[route].parse(BODIES[route] | many, query={})


@pytest.mark.parametrize("route", BODIES)
def test_a_long_model_name_is_refused_as_each_frame_would_repeat_it(route):
    with pytest.raises(RequestError, match=r"^model: .*256 characters"):
        SURFACES[route].parse(BODIES[route] | {"model": "m" * 257}, query={})


@pytest.mark.parametrize(
    ("roles", "joined"),
    [
        ("ssu", [("system", "0\n\n1"), ("user", "2")]),
        ("us", [("user", "0"), ("system", "1")]),
        ("suss", [("system", "0"), ("user", "1"), ("system", "2"), ("system", "3")]),
    ],
)
def test_the_system_messages_at_the_start_are_one(roles, joined):
    names = {"s": "system", "u": "user"}
    messages = [{"role": names[role], "content": f"{at}"} for at, role in enumerate(roles)]
    call = SURFACES["/v1/chat/completions"].parse(CHAT_BODY | {"messages": messages}, query={})
    assert [(message["role"], message["content"]) for message in call.messages] == joined
