"""Responses, as OpenAI's own client and Codex see them."""

import asyncio
import json

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from support.surfaced import Codes, answer, surfaced

from harness.proxy.surfaces.base import RequestError
from harness.proxy.surfaces.registry import SURFACES

RESPONSES = SURFACES["/v1/responses"]
TOOL = {"type": "function", "name": "run", "description": "Run it.", "parameters": {"type": "object"}, "strict": False}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Patch.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
CALL = ("call_1", "run", '{"command": "ls"}')


def client(server, kind=openai.AsyncOpenAI):
    return kind(base_url=f"{server.origin}/v1", api_key="none", max_retries=0)


def parse(**fields):
    return RESPONSES.parse({"model": "m", "input": "hi"} | fields, query={})


def streamed(call, given):
    frames = [frame.decode() for frame in RESPONSES.events(call, given, Codes())]
    events = [json.loads(frame.split("data: ", 1)[1]) for frame in frames]
    assert all(frame.startswith(f"event: {event['type']}\n") for frame, event in zip(frames, events, strict=True))
    return events


async def test_an_answer_with_thinking_text_and_calls_is_parsed_by_the_client():
    async with surfaced(answer("on it", reasoning="hm", calls=[CALL])) as server, client(server) as openai_client:
        got = await openai_client.responses.create(
            model="mine", input="hi", instructions="be brief", tools=[TOOL], metadata={"k": "v"}
        )
    reasoning, message, call = got.output
    assert (got.status, got.model, got.output_text, got.metadata) == ("completed", "mine", "on it", {"k": "v"})
    assert (reasoning.type, reasoning.content[0].text, reasoning.encrypted_content) == ("reasoning", "hm", None)
    assert message.role == "assistant"
    assert (call.type, call.call_id, call.name, call.arguments) == ("function_call", *CALL)
    assert (got.usage.input_tokens, got.usage.output_tokens, got.usage.total_tokens) == (10, 3, 13)
    assert got.usage.input_tokens_details.cached_tokens == 4
    assert server.calls[0].messages[0] == {"role": "system", "content": "be brief"}


async def test_the_clients_own_accumulator_takes_the_stream():
    long = json.dumps({"command": "x" * 5000})
    given = answer("on it", reasoning="hm", calls=[CALL, ("call_2", "run", long)])
    async with surfaced(given) as server, client(server) as openai_client:
        async with openai_client.responses.stream(model="mine", input="hi", tools=[TOOL]) as stream:
            kinds = [event.type async for event in stream]
            got = await stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert got.output_text == "on it"
    calls = [(i.call_id, i.name, i.arguments) for i in got.output if i.type == "function_call"]
    assert calls == [CALL, ("call_2", "run", long)]


async def test_the_synchronous_client_streams_the_same():
    def ask(server):
        with client(server, openai.OpenAI) as openai_client:
            return list(openai_client.responses.create(model="m", input="hi", stream=True))

    async with surfaced(answer("on it")) as server:
        events = await asyncio.to_thread(ask, server)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "on it"
    assert events[-1].response.usage.total_tokens == 13


def test_events_come_in_openais_order_numbered_and_of_openais_types():
    events = streamed(
        parse(tools=[TOOL, PATCH]), answer("t", reasoning="r", calls=[CALL, ("c2", "apply_patch", '{"input": "+"}')])
    )
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    adapter = TypeAdapter(ResponseStreamEvent)
    for event in events:
        assert adapter.validate_python(event, strict=False).type == event["type"]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in added] == [event["output_index"] for event in done] == [0, 1, 2, 3]
    assert [event["item"]["id"] for event in added] == [event["item"]["id"] for event in done]
    assert [event["item"] for event in done] == events[-1]["response"]["output"]
    assert (added[1]["item"]["content"], added[2]["item"]["arguments"], added[3]["item"]["input"]) == ([], "", "")
    assert {event["response"]["id"] for event in (events[0], events[1], events[-1])} == {events[0]["response"]["id"]}


def test_an_answer_cut_by_length_is_incomplete():
    events = streamed(parse(), answer("half", finish="length"))
    assert events[-1]["type"] == "response.incomplete"
    response = Response.model_validate(events[-1]["response"])
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete"


def test_an_empty_answer_is_an_empty_message():
    output = RESPONSES.complete(parse(), answer(""), Codes())["output"]
    assert [(item["type"], item["content"][0]["text"]) for item in output] == [("message", "")]


def test_a_stream_that_fails_ends_in_response_failed():
    frames = RESPONSES.error_event(502, "the policy failed", "policy_failure").decode().strip().split("\n\n")
    created, failed = (json.loads(frame.split("data: ", 1)[1]) for frame in frames)
    assert (created["type"], failed["type"]) == ("response.created", "response.failed")
    assert failed["response"]["error"] == {"code": "policy_failure", "message": "the policy failed"}
    assert created["response"]["id"] == failed["response"]["id"]


async def test_an_error_reaches_the_client_by_name():
    async with surfaced() as server, client(server) as openai_client:
        with pytest.raises(openai.BadRequestError) as error:
            await openai_client.responses.create(model="m", input="hi", previous_response_id="resp_1")
    assert (error.value.param, error.value.code) == ("previous_response_id", "unsupported_parameter")
    assert "whole conversation" in error.value.message


async def test_an_answer_sent_back_is_one_assistant_message():
    given = answer("on it", reasoning="hm", calls=[CALL, ("call_2", "run", "{}")])
    async with surfaced(given, answer("done")) as server, client(server) as openai_client:
        first = await openai_client.responses.create(
            model="m", input="hi", tools=[TOOL], include=["reasoning.encrypted_content"]
        )
        results = [{"type": "function_call_output", "call_id": c, "output": "ok"} for c in ("call_1", "call_2")]
        history = [{"role": "user", "content": "hi"}, *(item.to_dict() for item in first.output), *results]
        await openai_client.responses.create(model="m", input=history, tools=[TOOL])
    user, assistant, *tools = server.calls[1].messages
    assert user == {"role": "user", "content": "hi"}
    assert assistant == {
        "role": "assistant",
        "content": "on it",
        "reasoning": "hm",
        "tool_calls": [
            {"id": "call_1", "name": "run", "arguments": '{"command": "ls"}'},
            {"id": "call_2", "name": "run", "arguments": "{}"},
        ],
    }
    assert [(tool["tool_call_id"], tool["name"], tool["content"]) for tool in tools] == [
        ("call_1", "run", "ok"),
        ("call_2", "run", "ok"),
    ]


def test_reasoning_comes_back_in_the_sealed_form_that_codex_keeps():
    call = parse(include=["reasoning.encrypted_content"])
    item = RESPONSES.complete(call, answer("t", reasoning="naïve"), Codes())["output"][0]
    kept = {"type": "reasoning", "summary": [], "encrypted_content": item["encrypted_content"]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "t"}]}
    messages = parse(
        input=[{"role": "user", "content": "hi"}, kept, said, {"role": "user", "content": "go on"}]
    ).messages
    assert messages[1] == {"role": "assistant", "content": "t", "reasoning": "naïve"}
    foreign = kept | {"encrypted_content": "gAAAA-not-ours"}
    messages = parse(
        input=[{"role": "user", "content": "hi"}, foreign, said, {"role": "user", "content": "go on"}]
    ).messages
    assert messages[1] == {"role": "assistant", "content": "t"}


def test_answers_that_follow_each_other_stay_apart():
    def call(name):
        return {"type": "function_call", "call_id": name, "name": "run", "arguments": "{}"}

    def result(name):
        return {"type": "function_call_output", "call_id": name, "output": "ok"}

    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}
    said = {"role": "assistant", "content": "t"}
    items = [
        {"role": "user", "content": "hi"},
        call("a"),
        result("a"),
        said,
        call("b"),
        result("b"),
        call("c"),
        said,
        thought,
        call("d"),
        result("c"),
    ]
    messages = parse(input=items).messages
    shape = [(m["role"], m["content"], [c["id"] for c in m.get("tool_calls", [])]) for m in messages]
    assert shape == [
        ("user", "hi", []),
        ("assistant", "", ["a"]),
        ("tool", "ok", []),
        ("assistant", "t", ["b"]),
        ("tool", "ok", []),
        ("assistant", "", ["c"]),
        ("assistant", "t", []),
        ("assistant", "", ["d"]),
        ("tool", "ok", []),
    ]
    assert messages[7]["reasoning"] == "s"


def test_custom_tools_are_shown_as_functions_of_one_text_and_told_as_what_they_are():
    call = parse(tools=[PATCH])
    assert call.tools[0]["parameters"]["required"] == ["input"]
    assert "start: /.+/" in call.tools[0]["description"]
    output = RESPONSES.complete(call, answer(calls=[("c", "apply_patch", '{"input": "+ä"}')]), Codes())["output"]
    assert [(i["type"], i["call_id"], i["name"], i["input"]) for i in output] == [
        ("custom_tool_call", "c", "apply_patch", "+ä")
    ]
    back = [
        {"role": "user", "content": "hi"},
        *output,
        {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
    ]
    messages = parse(input=back, tools=[PATCH]).messages
    assert messages[1]["tool_calls"] == [{"id": "c", "name": "apply_patch", "arguments": '{"input": "+ä"}'}]
    assert messages[2] == {"role": "tool", "content": "ok", "tool_call_id": "c", "name": "apply_patch"}


def test_a_custom_tool_called_with_other_arguments_gets_all_of_them():
    output = RESPONSES.complete(parse(tools=[PATCH]), answer(calls=[("c", "apply_patch", '{"patch": 1}')]), Codes())[
        "output"
    ]
    assert output[0]["input"] == '{"patch": 1}'


def test_tools_in_a_namespace_are_called_by_joined_names():
    call = parse(tools=[{"type": "namespace", "name": "agents", "description": "d", "tools": [TOOL]}])
    assert [tool["name"] for tool in call.tools] == ["agents__run"]
    output = RESPONSES.complete(call, answer(calls=[("c", "agents__run", "{}")]), Codes())["output"]
    assert (output[0]["name"], output[0]["namespace"]) == ("run", "agents")
    back = [
        {"role": "user", "content": "hi"},
        *output,
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
    ]
    assert parse(input=back).messages[1]["tool_calls"][0]["name"] == "agents__run"


def test_tools_that_the_vendor_would_run_are_not_shown_to_the_policy():
    hosted = [{"type": "web_search", "external_web_access": False}, {"type": "something_new", "x": 1}]
    assert [tool["name"] for tool in parse(tools=[*hosted, TOOL]).tools] == ["run"]


def test_what_codex_sends_is_served():
    call = parse(
        input=[
            {"type": "message", "id": "m1", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "more"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix it"}]},
            {
                "type": "function_call",
                "id": "fc_1",
                "status": "completed",
                "name": "run",
                "arguments": "{}",
                "call_id": "a",
            },
            {
                "type": "function_call_output",
                "id": "o",
                "call_id": "a",
                "output": [{"type": "input_text", "text": "ok"}],
            },
        ],
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        store=False,
        stream=True,
        text={"verbosity": "low"},
        prompt_cache_key="k",
        client_metadata={"x": "y"},
        tool_choice="auto",
    )
    assert [(m["role"], m["content"]) for m in call.messages] == [
        ("system", "rules\n\nmore"),
        ("user", "fix it"),
        ("assistant", ""),
        ("tool", "ok"),
    ]
    assert (call.stream, call.thinking) == (True, True)


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}


def test_a_picture_that_a_tool_brings_is_told_to_be_one():
    call = {"type": "function_call", "call_id": "a", "name": "view_image", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "a", "output": [IMAGE]}
    assert (
        parse(input=[{"role": "user", "content": "hi"}, call, result]).messages[-1]["content"].startswith("[an image")
    )


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input", "unsupported_value"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "unsupported_value"),
        ({"input": [{"role": "assistant", "content": "I"}]}, "input", "unsupported_value"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input", "missing_required_parameter"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text", "unsupported_value"),
        ({"include": ["message.output_text.logprobs"]}, "include", "unsupported_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools", "missing_required_parameter"),
    ],
)
def test_what_is_wrong_is_named(fields, param, code):
    with pytest.raises(RequestError, match=f"^{param}") as error:
        parse(**fields)
    assert (error.value.param, error.value.code) == (param, code)
