"""Chat completions, as OpenAI's own client sees them."""

import asyncio
import json

import openai
import pytest
from support.surfaced import Codes, answer, surfaced

from harness.proxy.surfaces.base import Call, RequestError
from harness.proxy.surfaces.registry import SURFACES

CHAT = SURFACES["/v1/chat/completions"]
ASK = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {"name": "run", "description": "Run it.", "parameters": {"type": "object", "default": None}},
}
CALL = ("call_1", "run", '{"command": "ls"}')


def client(server, kind=openai.AsyncOpenAI):
    return kind(base_url=f"{server.origin}/v1", api_key="none", max_retries=0)


def parse(**fields):
    return CHAT.parse({"model": "m", "messages": ASK} | fields, query={})


async def test_an_answer_with_calls_thinking_and_usage_is_parsed_by_the_client():
    async with surfaced(answer("on it", reasoning="hm", calls=[CALL])) as server, client(server) as openai_client:
        got = await openai_client.chat.completions.create(model="mine", messages=ASK, tools=[TOOL])
    choice = got.choices[0]
    assert (got.model, choice.finish_reason, choice.message.content) == ("mine", "tool_calls", "on it")
    assert choice.message.reasoning_content == "hm"
    call = choice.message.tool_calls[0]
    assert (call.id, call.type, call.function.name, call.function.arguments) == (CALL[0], "function", *CALL[1:])
    assert (got.usage.prompt_tokens, got.usage.completion_tokens, got.usage.total_tokens) == (10, 3, 13)
    assert got.usage.prompt_tokens_details.cached_tokens == 4
    assert server.calls[0].tools == (
        {"name": "run", "description": "Run it.", "parameters": TOOL["function"]["parameters"]},
    )


@pytest.mark.parametrize(("calls", "content"), [([], ""), ([CALL], None)])
def test_an_answer_without_text_has_none_only_beside_calls(calls, content):
    message = CHAT.complete(parse(), answer("", calls=calls), Codes())["choices"][0]["message"]
    assert message["content"] == content


async def test_the_synchronous_client_streams_the_same():
    def ask(server):
        with client(server, openai.OpenAI) as openai_client:
            return list(openai_client.chat.completions.create(model="mine", messages=ASK, stream=True))

    async with surfaced(answer("on it")) as server:
        chunks = await asyncio.to_thread(ask, server)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "on it"
    waits, *chunks = chunks
    assert waits.choices[0].delta.to_dict() == {}
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "stop"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.usage is None for chunk in chunks)


async def test_a_stream_adds_up_to_the_whole_answer():
    long = "x" * 5000
    given = answer(long, reasoning="hm", calls=[CALL, ("call_2", "run", json.dumps({"command": long}))])
    async with surfaced(given) as server, client(server) as openai_client:
        async with openai_client.chat.completions.stream(
            model="mine", messages=ASK, tools=[TOOL], stream_options={"include_usage": True}, logprobs=True
        ) as stream:
            thoughts = [
                event.chunk.choices[0].delta.reasoning_content
                async for event in stream
                if event.type == "chunk"
                and event.chunk.choices
                and "reasoning_content" in event.chunk.choices[0].delta.model_extra
            ]
            got = await stream.get_final_completion()
    choice = got.choices[0]
    assert (choice.message.content, choice.finish_reason, thoughts) == (long, "tool_calls", ["hm"])
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [CALL, ("call_2", "run", json.dumps({"command": long}))]
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (10, 3)
    assert [token.logprob for token in choice.logprobs.content] == [-0.5, -0.25, -0.125]


def test_frames_end_with_usage_and_done_and_stay_short():
    call = Call(messages=(), stream=True, include_usage=True)
    frames = list(CHAT.events(call, answer("y" * 100_000), Codes()))
    assert frames[-1] == b"data: [DONE]\n\n"
    assert max(map(len, frames)) < 8192
    usage = json.loads(frames[-2].removeprefix(b"data: "))
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 13
    assert all(json.loads(frame.removeprefix(b"data: "))["usage"] is None for frame in frames[:-2])


async def test_log_probabilities_are_those_of_the_sampled_tokens():
    async with surfaced(answer("ok!")) as server, client(server) as openai_client:
        got = await openai_client.chat.completions.create(model="m", messages=ASK, logprobs=True)
    tokens = got.choices[0].logprobs.content
    assert [(token.token, token.bytes, token.logprob) for token in tokens][:1] == [("o", [111], -0.5)]
    assert len(tokens) == 3


async def test_an_error_reaches_the_client_by_name_and_is_not_retried():
    async with surfaced() as server, client(server) as openai_client:
        with pytest.raises(openai.BadRequestError) as error:
            await openai_client.chat.completions.create(model="m", messages=ASK, n=2)
    assert (error.value.param, error.value.code, error.value.type) == (
        "n",
        "unsupported_value",
        "invalid_request_error",
    )


async def test_a_stream_that_fails_is_an_error_and_no_short_answer():
    broken = RequestError("the policy failed", code="policy_failure", status=502)
    async with surfaced(broken) as server, client(server) as openai_client:
        stream = await openai_client.chat.completions.create(model="m", messages=ASK, stream=True)
        with pytest.raises(openai.APIError, match="the policy failed"):
            [chunk async for chunk in stream]


async def test_an_answer_sent_back_is_the_message_it_was():
    given = answer("on it", reasoning="hm", calls=[CALL])
    async with surfaced(given, answer("done")) as server, client(server) as openai_client:
        first = (await openai_client.chat.completions.create(model="m", messages=ASK, tools=[TOOL])).choices[0].message
        result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "a.py"}]}
        await openai_client.chat.completions.create(model="m", messages=[*ASK, first, result], tools=[TOOL])
    user, assistant, tool = server.calls[1].messages
    assert user == {"role": "user", "content": "hi"}
    assert assistant == {
        "role": "assistant",
        "content": "on it",
        "reasoning": "hm",
        "tool_calls": [{"id": "call_1", "name": "run", "arguments": '{"command": "ls"}'}],
    }
    assert tool == {"role": "tool", "content": "a.py", "tool_call_id": "call_1", "name": "run"}


def test_developers_and_systems_words_at_the_start_are_one_system_message():
    said = [
        {"role": "system", "content": "one"},
        {"role": "developer", "content": [{"type": "text", "text": "two"}]},
        *ASK,
        {"role": "system", "content": "late"},
        *ASK,
    ]
    roles = [(m["role"], m["content"]) for m in parse(messages=said).messages]
    assert roles == [("system", "one\n\ntwo"), ("user", "hi"), ("system", "late"), ("user", "hi")]


def test_what_clients_keep_beside_an_answer_is_left_out_of_account():
    odd = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "provider_specific_fields": {}}
    assert parse(messages=[*ASK, odd, *ASK]).messages[1] == {"role": "assistant", "content": ""}


def test_cache_marks_and_null_fields_change_nothing():
    marked = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]
    assert parse(messages=[{"role": "user", "content": marked, "tool_calls": None}]).messages == parse().messages


@pytest.mark.parametrize(
    ("fields", "param", "code", "told"),
    [
        ({"messages": []}, "messages", "invalid_value", "^messages: "),
        ({"messages": None}, "messages", "missing_required_parameter", "^messages: this field is required"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages", "unsupported_value", r"^messages\.0: "),
        ({"messages": [{"role": "user"}]}, "messages", "missing_required_parameter", r"^messages\.0\.content: "),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "missing_required_parameter", "tool_call_id"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages", "invalid_value", "surrogate"),
        ({"messages": [*ASK, {"role": "assistant", "content": "I"}]}, "messages", "unsupported_value", "assistant's"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages",
            "unsupported_value",
            r"^messages\.0\.content\.0\.type: not supported",
        ),
        ({"max_tokens": 0}, "max_tokens", "invalid_value", "^max_tokens: "),
        ({"temperature": "hot"}, "temperature", "invalid_value", "^temperature: "),
        ({"stop": [3]}, "stop", "invalid_value", "^stop"),
        ({"tools": [{"type": "custom"}]}, "tools", "unsupported_value", r"^tools\.0\.type: "),
        ({"tools": [{"type": "function", "function": {}}]}, "tools", "missing_required_parameter", r"function\.name"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs", "unsupported_parameter", r"kwargs\.x: "),
    ],
)
def test_what_is_wrong_is_named(fields, param, code, told):
    with pytest.raises(RequestError, match=told) as error:
        parse(**fields)
    assert (error.value.param, error.value.code) == (param, code)


def test_a_picture_that_a_tool_brings_is_told_to_be_one_and_ends_nothing():
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    shown = [{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {"url": "data:"}}]
    result = {"role": "tool", "tool_call_id": "call_1", "content": shown}
    assert parse(messages=[*ASK, asked, result]).messages[-1]["content"].startswith("see [an image")


def test_half_a_character_in_a_tools_result_is_mended():
    asked = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    result = {"role": "tool", "tool_call_id": "c", "content": "cut \ud83d"}
    assert parse(messages=[*ASK, asked, result]).messages[-1]["content"] == "cut �"


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 3}, {"max_tokens": 3}),
        ({"stop": "END"}, {"stop": ("END",)}),
        ({"stop": ["a", "", "b"]}, {"stop": ("a", "b")}),
        ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
        ({"stream": True, "stream_options": {"include_usage": True}}, {"stream": True, "include_usage": True}),
        ({"tools": [TOOL], "tool_choice": "none"}, {"tools": ()}),
        ({"tools": []}, {"tools": ()}),
        ({"reasoning_effort": "none"}, {"thinking": False}),
        ({"reasoning_effort": "high"}, {"thinking": True}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"thinking": False}),
        ({}, {"thinking": None, "model": "m", "logprobs": False, "max_tokens": None, "stop": ()}),
    ],
)
def test_what_the_client_asks_for_is_in_the_call(fields, wanted):
    call = parse(**fields)
    assert {name: getattr(call, name) for name in wanted} == wanted
