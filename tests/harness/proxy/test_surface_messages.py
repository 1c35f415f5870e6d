"""Messages, as Anthropic's own client and Claude Code see them."""

import asyncio
import json

import anthropic
import pytest
from anthropic.types import RawMessageStreamEvent
from anthropic.types.beta import BetaMessage
from pydantic import TypeAdapter
from support.surfaced import Codes, answer, surfaced

from harness.proxy.surfaces.base import RequestError
from harness.proxy.surfaces.registry import SURFACES, models, parse_count

MESSAGES = SURFACES["/v1/messages"]
ASK = [{"role": "user", "content": "hi"}]
TOOL = {"name": "Bash", "description": "Run it.", "input_schema": {"type": "object"}, "eager_input_streaming": True}
CALL = ("call_1", "Bash", '{"command": "ls"}')
THINK = {"type": "enabled", "budget_tokens": 1024}


def client(server, kind=anthropic.AsyncAnthropic):
    return kind(base_url=server.origin, api_key="none", max_retries=0)


def parse(**fields):
    return MESSAGES.parse({"model": "m", "max_tokens": 99, "messages": ASK} | fields, query={})


def streamed(call, given):
    frames = [frame.decode() for frame in MESSAGES.events(call, given, Codes())]
    events = [json.loads(frame.split("data: ", 1)[1]) for frame in frames]
    assert all(frame.startswith(f"event: {event['type']}\n") for frame, event in zip(frames, events, strict=True))
    return events


async def test_an_answer_with_thinking_text_and_calls_is_parsed_by_the_client():
    async with surfaced(answer("on it", reasoning="hm", calls=[CALL])) as server, client(server) as claude:
        got = await claude.messages.create(
            model="mine", max_tokens=2000, messages=ASK, tools=[TOOL], thinking=THINK, system="be brief"
        )
    thinking, text, call = got.content
    assert (got.model, got.role, got.stop_reason, got.stop_sequence) == ("mine", "assistant", "tool_use", None)
    assert (thinking.type, thinking.thinking, bool(thinking.signature)) == ("thinking", "hm", True)
    assert (text.type, text.text) == ("text", "on it")
    assert (call.type, call.id, call.name, call.input) == ("tool_use", "call_1", "Bash", {"command": "ls"})
    assert (got.usage.input_tokens, got.usage.cache_read_input_tokens, got.usage.output_tokens) == (6, 4, 3)
    call = server.calls[0]
    assert call.messages[0] == {"role": "system", "content": "be brief"}
    assert call.tools == ({"name": "Bash", "description": "Run it.", "parameters": {"type": "object"}},)


async def test_the_clients_own_accumulator_takes_the_stream():
    long = {"command": "x" * 5000}
    given = answer("on it", reasoning="hm", calls=[CALL, ("call_2", "Bash", json.dumps(long))])
    async with surfaced(given) as server, client(server) as claude:
        async with claude.messages.stream(
            model="mine", max_tokens=2000, messages=ASK, tools=[TOOL], thinking=THINK
        ) as stream:
            got = await stream.get_final_message()
    assert [block.type for block in got.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (got.content[0].thinking, bool(got.content[0].signature), got.content[1].text) == ("hm", True, "on it")
    assert [(block.id, block.input) for block in got.content[2:]] == [("call_1", {"command": "ls"}), ("call_2", long)]
    assert (got.stop_reason, got.usage.input_tokens, got.usage.output_tokens) == ("tool_use", 6, 3)
    assert got.usage.cache_read_input_tokens == 4


async def test_the_synchronous_client_and_its_beta_are_served_alike():
    def ask(server):
        with client(server, anthropic.Anthropic) as claude:
            with claude.messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
                plain = list(stream.text_stream)
            return plain, claude.beta.messages.create(model="m", max_tokens=9, messages=ASK, betas=["x-1"])

    async with surfaced(answer("on it"), answer("again")) as server:
        plain, beta = await asyncio.to_thread(ask, server)
    assert plain == ["on it"]
    assert isinstance(beta, BetaMessage) and beta.content[0].text == "again"


def test_events_come_in_anthropics_order_and_of_anthropics_types():
    events = streamed(parse(thinking=THINK), answer("t", reasoning="r", calls=[CALL]))
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [event["type"] for event in events] == [
        "message_start",
        *[block[0], block[1], block[1], block[2]],
        *block,
        *block,
        "message_delta",
        "message_stop",
    ]
    adapter = TypeAdapter(RawMessageStreamEvent)
    for event in events:
        assert adapter.validate_python(event).type == event["type"]
    assert [event["index"] for event in events if "index" in event] == [0] * 4 + [1] * 3 + [2] * 3
    start, end = events[0]["message"], events[-2]
    assert (start["content"], start["stop_reason"], start["usage"]["input_tokens"]) == ([], None, 6)
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == 3
    shells = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert shells[0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert shells[1:] == [
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "call_1", "name": "Bash", "input": {}},
    ]
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]


async def test_pings_keep_a_stream_alive():
    assert MESSAGES.keep_alive == b'event: ping\ndata: {"type":"ping"}\n\n'


@pytest.mark.parametrize(
    ("given", "reason", "sequence"),
    [
        (answer("x"), "end_turn", None),
        (answer("x", finish="length"), "max_tokens", None),
        (answer("x", calls=[CALL]), "tool_use", None),
        (answer("x", calls=[CALL], finish="length"), "max_tokens", None),
        (answer("x", stop_string="END"), "stop_sequence", "END"),
        (answer("x", stop_string="of the session"), "end_turn", None),
    ],
)
def test_stop_reasons(given, reason, sequence):
    message = MESSAGES.complete(parse(stop_sequences=["END"]), given, Codes())
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize("asked", [{}, {"thinking": {"type": "disabled"}}])
def test_thinking_is_told_only_to_who_asks_for_it(asked):
    content = MESSAGES.complete(parse(**asked), answer("t", reasoning="r"), Codes())["content"]
    assert [block["type"] for block in content] == ["text"]


def test_an_empty_answer_is_an_empty_text():
    content = MESSAGES.complete(parse(), answer(""), Codes())["content"]
    assert content == [{"type": "text", "text": ""}]


async def test_an_answer_sent_back_is_the_message_it_was():
    given = answer("on it", reasoning="hm", calls=[CALL])
    async with surfaced(given, answer("done")) as server, client(server) as claude:
        first = await claude.messages.create(model="m", max_tokens=2000, messages=ASK, tools=[TOOL], thinking=THINK)
        result = {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "a.py"}]},
                {"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "on"},
            ],
        }
        back = [*ASK, {"role": "assistant", "content": first.content}, result]
        await claude.messages.create(model="m", max_tokens=2000, messages=back, tools=[TOOL])
    assert server.calls[1].messages[1:] == (
        {
            "role": "assistant",
            "content": "on it",
            "reasoning": "hm",
            "tool_calls": [{"id": "call_1", "name": "Bash", "arguments": '{"command": "ls"}'}],
        },
        {"role": "tool", "content": "a.py", "tool_call_id": "call_1", "name": "Bash"},
        {"role": "user", "content": "go\non"},
    )


@pytest.mark.parametrize("mark", ["cc_version=2.1; cch=1", "cc_version=2.1; cch=2"])
def test_claude_codes_billing_line_does_not_matter(mark):
    line = f"x-anthropic-billing-header: {mark};"
    blocks = [{"type": "text", "text": line}, {"type": "text", "text": "You fix code."}]
    wanted = parse(system="You fix code.").messages
    assert parse(system=blocks).messages == wanted
    assert parse(system=f"{line}\nYou fix code.").messages == wanted
    assert parse(system=line).messages == parse().messages


def test_what_claude_code_sends_is_served():
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    call = parse(
        system=[{"type": "text", "text": "You fix code.", **cached}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "fix it", **cached}]},
            {"role": "system", "content": "# Environment"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "a", "name": "Bash", "input": {}, "caller": {"type": "direct"}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True, **cached}],
            },
        ],
        thinking={"type": "adaptive", "display": "updates"},
        output_config={"effort": "high"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": "x"},
        stream=True,
        temperature=1,
        tools=[TOOL | cached],
    )
    assert [(m["role"], m["content"]) for m in call.messages] == [
        ("system", "You fix code."),
        ("user", "fix it"),
        ("system", "# Environment"),
        ("assistant", ""),
        ("tool", "no"),
    ]
    assert (call.stream, call.thinking, call.max_tokens, call.stop) == (True, True, 99, ())


def test_thinking_of_other_servers_is_passed_over():
    said = [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "t"}]
    messages = parse(messages=[*ASK, {"role": "assistant", "content": said}, *ASK]).messages
    assert messages[1] == {"role": "assistant", "content": "t"}


def test_a_picture_that_a_tool_brings_is_told_to_be_one():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    asked = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "Read", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [image]}]}
    assert parse(messages=[*ASK, asked, result]).messages[-1]["content"].startswith("[an image")


async def test_an_error_reaches_the_client_in_its_own_shape():
    async with surfaced() as server, client(server) as claude:
        with pytest.raises(anthropic.BadRequestError) as error:
            await claude.messages.create(model="m", max_tokens=9, messages=ASK, tool_choice={"type": "any"})
    told = error.value.body
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert told["error"]["message"].startswith("tool_choice: ") and told["error"]["param"] == "tool_choice"


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (401, "authentication_error"), (502, "api_error")]
)
def test_errors_are_of_the_type_that_goes_with_their_status(status, kind):
    assert MESSAGES.error(status, "m", "c")["error"]["type"] == kind


def test_a_prompt_that_is_too_long_is_said_in_the_words_that_agents_know():
    message = MESSAGES.error(400, "12 of 10 tokens", "context_length_exceeded")["error"]["message"]
    assert message == "prompt is too long: 12 of 10 tokens"


async def test_a_stream_that_fails_is_an_error():
    broken = RequestError("the policy failed", code="policy_failure", status=502)
    async with surfaced(broken) as server, client(server) as claude:
        stream = await claude.messages.create(model="m", max_tokens=9, messages=ASK, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="the policy failed"):
            [event async for event in stream]


def test_a_count_needs_no_limit_and_sees_the_whole_prompt():
    call = parse_count({"model": "m", "system": "s", "messages": ASK, "tools": [TOOL], "stream": True}, query={})
    assert [m["content"] for m in call.messages] == ["s", "hi"]
    assert call.tools[0]["name"] == "Bash" and call.max_tokens is None and not call.stream


def test_both_vendors_clients_find_the_policy_in_the_list_of_models():
    assert [model["id"] for model in models()["data"]] == ["policy"]
    listed = models(anthropic=True)
    assert (listed["data"][0]["type"], listed["first_id"], listed["has_more"]) == ("model", "policy", False)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"max_tokens": None}, "max_tokens", "missing_required_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "assistant", "content": "I"}]}, "messages", "unsupported_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages",
            "unsupported_value",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages",
            "missing_required_parameter",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools", "unsupported_value"),
        ({"tools": [{"name": "x"}]}, "tools", "missing_required_parameter"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config", "invalid_value"),
        ({"temperature": 1.5}, "temperature", "invalid_value"),
    ],
)
def test_what_is_wrong_is_named(fields, param, code):
    with pytest.raises(RequestError, match=f"^{param}") as error:
        parse(**fields)
    assert (error.value.param, error.value.code) == (param, code)
