"""The proxy over real HTTP; only the policy is scripted."""

import asyncio
import functools
import gzip
import json
import logging
import threading

import anthropic
import httpx
import openai
import pytest
from support.chat_templates import template_tokenizer
from support.scripted import ScriptedPolicy, generation
from support.tiny import tiny_tokenizer

from harness.proxy import answering, server
from harness.proxy import session as session_module
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.proxy.session import MAX_CONCURRENT
from harness.proxy.tool_calls import Reading
from trainer.rollout import Outcome, Sampling

WINDOW = 400
SAMPLING = Sampling(temperature=0.7, top_p=0.9, max_tokens=100)
TOOL = {"type": "function", "function": {"name": "shell", "parameters": {"type": "object", "properties": {}}}}
ASK = {"model": "any", "messages": [{"role": "user", "content": "hello"}]}
WHERE = {"session_id": "s", "task_id": "t", "group_id": "g", "step": 0, "outcome": Outcome.COMPLETED}


@functools.cache
def tokenizer():
    return tiny_tokenizer()


def make_policy(*script, **options):
    return ScriptedPolicy(tokenizer(), script, **options)


@pytest.fixture
async def http():
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        yield client


def proxy_for(policy, **options):
    return ProxyServer(policy, ChatCodec(tokenizer()), WINDOW, **options)


async def post(http, session, body=ASK, **changes):
    content = json.dumps(body | changes)  # ASCII, so that a lone surrogate gets through as JSON allows
    return await http.post(f"{session.base_url}/chat/completions", content=content)


def assert_refused(reply, status, *, code, param=None):
    error = reply.json()["error"]
    assert reply.status_code == status
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")


async def test_openais_own_client_gets_an_answer_and_the_tokens_are_captured():
    policy = make_policy("bonjour")
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key="none", max_retries=0) as client:
            answer = await client.chat.completions.create(
                model="policy", messages=ASK["messages"], logprobs=True, max_completion_tokens=50
            )
            models = [model.id async for model in client.models.list()]
        assert session.window == WINDOW
        await proxy.close_session(session)
    (call,) = policy.calls
    assert models == ["policy"]
    assert answer.choices[0].message.content == "bonjour"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == len(call.prompt_ids)
    assert answer.usage.completion_tokens == len("bonjour") + 1
    assert [t.logprob for t in answer.choices[0].logprobs.content][:2] == [-0.25, -0.25 - 1 / 64]
    assert call.session_id == "s" and call.sampling.max_tokens == 50
    assert session.capture.rollouts("longest", **WHERE)[0].response_length == len("bonjour") + 1


async def test_the_sessions_temperature_and_top_p_win_and_each_override_is_counted(http):
    policy = make_policy("ok")
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        await post(http, session, temperature=0.0)
        await post(http, session, top_p=0.5, temperature=0.7)
        await post(http, session, temperature=0.7, top_p=0.9)
    assert session.overrides == 2
    assert {(c.sampling.temperature, c.sampling.top_p) for c in policy.calls} == {(0.7, 0.9)}


async def test_max_tokens_is_the_least_of_request_session_and_room(http):
    policy = make_policy("ok")
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        await post(http, session, max_tokens=7)
        await post(http, session, max_tokens=7000)
        await post(http, session, messages=[{"role": "user", "content": "x" * 320}])
    assert [c.sampling.max_tokens for c in policy.calls[:2]] == [7, 100]
    assert policy.calls[2].sampling.max_tokens == WINDOW - len(policy.calls[2].prompt_ids) < 100


async def test_a_prompt_that_leaves_no_room_is_refused_and_marks_the_session_overlong(http):
    policy = make_policy("ok")
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        reply = await post(http, session, messages=[{"role": "user", "content": "x" * WINDOW}])
    assert_refused(reply, 400, code="context_length_exceeded", param="messages")
    assert session.overlong and policy.calls == []
    assert session.capture.rollouts("all", **WHERE) == []


async def test_stop_strings_reach_the_policy_and_are_cut_from_the_text_but_not_from_the_ids(http):
    policy = make_policy("code\n```\nchatter")
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        reply = await post(http, session, stop=["\n```\n"])
    assert policy.calls[0].sampling.stop == ("\n```\n",)
    assert reply.json()["choices"][0]["message"]["content"] == "code"
    (rollout,) = session.capture.rollouts("longest", **WHERE)
    assert tokenizer().decode(rollout.token_ids[rollout.prompt_length :]) == "code\n```\n"


async def test_an_answer_cut_by_length_says_so(http):
    async with proxy_for(make_policy("a long answer")) as proxy:
        session = proxy.open_session("s", SAMPLING)
        choice = (await post(http, session, max_tokens=6)).json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "a long")


async def test_turns_of_one_session_extend_each_other_over_http(http):
    policy = make_policy("one", "two")
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        first = (await post(http, session)).json()["choices"][0]["message"]
        parts = [{"type": "text", "text": "and "}, {"type": "text", "text": "more"}]
        await post(http, session, messages=[*ASK["messages"], first, {"role": "user", "content": parts}])
    shown, again = policy.calls[0].prompt_ids, policy.calls[1].prompt_ids
    assert again[: len(shown) + 4] == [*shown, *tokenizer().encode("one"), tokenizer().eos_token_id]
    assert "and more" in tokenizer().decode(again)
    assert len(session.capture.segments) == 1


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"n": 2}, "n", "unsupported_value"),
        ({"logit_bias": {"1": 1}}, "logit_bias", "unsupported_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages", "invalid_value"),
        ({"tools": [TOOL]}, "messages", "invalid_value"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(http, changes, param, code):
    """The last one: the template of these tests cannot show tools."""
    policy = make_policy("ok")
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        assert_refused(await post(http, session, **changes), 400, code=code, param=param)
        assert_refused(await post(http, session, stream=True, **changes), 400, code=code, param=param)
        assert (await post(http, session)).status_code == 200
    assert len(policy.calls) == 1 and session.rejected == 2 and session.infra_failure is None


async def test_null_fields_count_as_absent(http):
    async with proxy_for(make_policy("ok")) as proxy:
        session = proxy.open_session("s", SAMPLING)
        message = {"role": "user", "content": "hello", "tool_calls": None}
        assert (await post(http, session, tools=None, stop=None, messages=[message])).status_code == 200


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000, b"[]", b'"text"'])
async def test_a_body_that_is_no_json_object_is_refused(http, body):
    async with proxy_for(make_policy("ok")) as proxy:
        session = proxy.open_session("s", SAMPLING)
        reply = await http.post(f"{session.base_url}/chat/completions", content=body)
    assert reply.status_code == 400 and "error" in reply.json()
    assert session.infra_failure is None


async def raw_post(session, headers, body):
    """The status line that answers a request whose body is `body`, byte for byte."""
    host, port = session.origin.removeprefix("http://").split(":")
    path = session.base_url.removeprefix(session.origin) + "/chat/completions"
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n".encode() + body)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("Content-Encoding: gzip\r\nContent-Length: 9", b"not gzip!"),
        ("Content-Encoding: deflate\r\nContent-Length: 9", b"not zlib!"),
        ("Content-Encoding: gzip\r\nTransfer-Encoding: chunked", b"4\r\nnope\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked", b'5\r\n{"me\r\nzz\r\n'),
        ("Transfer-Encoding: chunked", b"-1\r\n"),
        ("Content-Length: 100", b"{}"),
        ("Content-Length: -1", b"{}"),
        ("Content-Encoding: br\r\nContent-Length: 2", b"{}"),
    ],
)
async def test_a_body_that_cannot_be_decoded_is_the_clients_fault(http, headers, body):
    async with proxy_for(make_policy("ok")) as proxy:
        session = proxy.open_session("s", SAMPLING)
        status = await asyncio.wait_for(raw_post(session, headers, body), 20)
        assert b"200" not in status and b" 50" not in status
        assert (await post(http, session)).status_code == 200
    assert session.infra_failure is None


async def test_only_so_many_bytes_of_a_session_are_in_memory_at_a_time(http):
    policy = make_policy("ok", delay=60)
    size = 1 << 20
    async with proxy_for(policy, max_body_bytes=size) as proxy:
        session = proxy.open_session("s", SAMPLING)
        body = json.dumps(ASK).encode()
        body += b" " * (size - len(body))
        first = asyncio.create_task(http.post(f"{session.base_url}/chat/completions", content=body))
        await policy.started.wait()
        second = asyncio.create_task(http.post(f"{session.base_url}/chat/completions", content=body))
        while session.requests < 2:
            await asyncio.sleep(0.01)
        third = asyncio.create_task(post(http, session, messages=[{"role": "user", "content": "small"}]))
        while session.requests < 3:
            await asyncio.sleep(0.01)
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert len(policy.calls) == 1, "the third has to wait for the first two's bytes"
        await proxy.close_session(session)
        assert [r.status_code for r in await asyncio.gather(first, second, third)] == [401] * 3


async def test_what_a_body_costs_is_bounded_although_it_is_compressed(http):
    async with proxy_for(make_policy("ok"), max_body_bytes=100_000) as proxy:
        session = proxy.open_session("s", SAMPLING)
        bomb = gzip.compress(b" " * 10_000_000)
        assert len(bomb) < 100_000
        reply = await http.post(
            f"{session.base_url}/chat/completions", content=bomb, headers={"Content-Encoding": "gzip"}
        )
    assert_refused(reply, 413, code="request_entity_too_large")
    assert session.rejected == 1 and session.infra_failure is None


async def test_a_body_that_is_too_large_is_refused(http):
    async with proxy_for(make_policy("ok"), max_body_bytes=1000) as proxy:
        session = proxy.open_session("s", SAMPLING)
        reply = await post(http, session, messages=[{"role": "user", "content": "x" * 2000}])
    assert_refused(reply, 413, code="request_entity_too_large")


async def test_other_paths_and_methods_are_refused_in_the_same_shape(http):
    async with proxy_for(make_policy("ok")) as proxy:
        session = proxy.open_session("s", SAMPLING)
        assert_refused(await http.get(f"{session.base_url}/files"), 404, code="not_found")
        assert_refused(await http.get(f"{session.base_url}/chat/completions"), 405, code="method_not_allowed")


async def test_a_session_closed_while_its_prompt_is_made_samples_nothing(http, monkeypatch):
    monkeypatch.setattr(answering, "_LONG_TEXT", 0)
    policy = make_policy("ok")
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        begun, go_on = threading.Event(), threading.Event()
        render = session.capture.render
        monkeypatch.setattr(session.capture, "render", lambda turn: (begun.set(), go_on.wait(20), render(turn)))
        asked = asyncio.create_task(post(http, session))
        await asyncio.to_thread(begun.wait, 20)
        await proxy.close_session(session)
        go_on.set()
        assert_refused(await asked, 401, code="invalid_api_key")
    assert policy.calls == [] and session.capture.num_turns == 0


async def test_unknown_and_closed_sessions_are_unauthorized(http):
    policy = make_policy("ok")
    async with proxy_for(policy) as proxy:
        session, other = proxy.open_session("s", SAMPLING), proxy.open_session("o", SAMPLING)
        assert (await post(http, session)).status_code == 200
        await proxy.close_session(session)
        assert_refused(await post(http, session), 401, code="invalid_api_key")
        guess = session.base_url.replace("/s/", "/s/x")
        assert_refused(await http.post(f"{guess}/chat/completions", json=ASK), 401, code="invalid_api_key")
        assert_refused(await http.get(f"{guess}/models"), 401, code="invalid_api_key")
        assert (await post(http, other)).status_code == 200
        assert (proxy.unauthorized, proxy.revoked) == (3, 1)
    assert session.capture.num_turns == 1
    assert session.counters()["revoked_requests"] == 1 and session.rejected == 0


async def test_closing_a_session_stops_its_generation_and_freezes_its_tokens(http):
    policy = make_policy("ok", delay=60)
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        asked = asyncio.create_task(post(http, session))
        waiting = asyncio.create_task(post(http, session))
        await policy.started.wait()
        await proxy.close_session(session)
        assert_refused(await asked, 401, code="invalid_api_key")
        assert_refused(await waiting, 401, code="invalid_api_key")
    assert policy.cancelled == 1 and policy.running == 0
    assert len(policy.calls) == 1
    assert session.capture.segments == [] and session.infra_failure is None
    assert session.revoked_requests == 2


def asking(text):
    return {"messages": [{"role": "user", "content": text}]}


async def test_the_same_request_again_waits_for_the_first_and_opens_a_segment_of_its_own(http):
    policy = make_policy("ok", delay=0.02)
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        replies = await asyncio.gather(*(post(http, session) for _ in range(4)))
    assert [r.status_code for r in replies] == [200] * 4
    assert policy.most_running == 1
    assert [s.num_turns for s in session.capture.segments] == [1] * 4
    assert session.counters()["duplicate_requests"] == 3


async def test_two_requests_that_go_on_from_the_same_answer_take_turns_and_the_second_forks(http):
    policy = make_policy("one", "two", "three", delay=0.02)
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        first = (await post(http, session)).json()["choices"][0]["message"]
        goes_on = [[*ASK["messages"], first, *asking(text)["messages"]] for text in ("left", "right")]
        policy.most_running = 0
        await asyncio.gather(*(post(http, session, messages=messages) for messages in goes_on))
    assert policy.most_running == 1
    parent, fork = session.capture.segments
    assert (parent.num_turns, fork.num_turns, fork.parent, fork.parent_turn) == (2, 1, 0, 0)
    kept = parent.turns[0].answer_end
    assert policy.calls[1].prompt_ids[:kept] == policy.calls[2].prompt_ids[:kept] == list(parent.token_ids[:kept])
    assert session.counters()["reused_prefixes"] == 1


async def test_other_conversations_of_a_session_are_served_side_by_side_but_not_too_many(http):
    policy = make_policy("ok", delay=1)
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        await asyncio.gather(*(post(http, session, **asking(f"agent {i}")) for i in range(12)))
    assert policy.most_running == MAX_CONCURRENT == 8
    assert len(session.capture.segments) == 12


async def test_sessions_are_served_side_by_side(http):
    policy = make_policy("ok", delay=1)
    async with proxy_for(policy) as proxy:
        sessions = [proxy.open_session(f"s{i}", SAMPLING) for i in range(3)]
        await asyncio.gather(*(post(http, session) for session in sessions))
    assert policy.most_running == 3


async def test_a_client_that_hangs_up_cancels_its_generation_and_may_ask_again(http):
    policy = make_policy("ok", delay=60)
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        asks = asyncio.create_task(post(http, session))
        await policy.started.wait()
        asks.cancel()
        while policy.running:
            await asyncio.sleep(0.01)
        policy.delay = 0
        assert (await post(http, session)).status_code == 200
    assert (policy.cancelled, session.cancelled) == (1, 1)
    assert [s.num_turns for s in session.capture.segments] == [1]
    assert session.infra_failure is None


def no_logprob(call):
    return type("Answer", (), {"token_ids": [65], "logprobs": [None], "finish_reason": "stop"})()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (RuntimeError("engine is dead"), "engine is dead"),
        (asyncio.CancelledError(), "cancelled"),
        (lambda call: generation([65], "abort"), "aborted"),
        (lambda call: generation([]), "without tokens"),
        (no_logprob, "no Generation"),
        (lambda call: generation([65], version=-1), "weight version"),
    ],
)
async def test_a_failing_policy_is_an_infra_failure_of_the_session(http, entry, reason):
    async with proxy_for(make_policy(entry)) as proxy:
        session = proxy.open_session("s", SAMPLING)
        reply = await post(http, session)
    assert reply.status_code == 502
    assert reply.json()["error"]["code"] == "policy_failure"
    assert reason in session.infra_failure and reason in reply.json()["error"]["message"]
    assert session.capture.segments == []


async def test_the_secret_is_in_no_log_and_no_repr(http, caplog):
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # the client of this test; the scaffold's own is tested there
    async with proxy_for(make_policy("ok", RuntimeError("boom"))) as proxy:
        session = proxy.open_session("s", SAMPLING)
        for _ in range(2):
            await post(http, session)
        await http.get(f"{session.base_url}/nowhere")
    logging.getLogger("httpx").setLevel(logging.NOTSET)
    assert session.secret in session.base_url and len(session.secret) >= 40
    assert session.secret not in repr(session)
    assert session.secret not in caplog.text


async def test_the_server_listens_on_the_loopback_interface_only():
    async with proxy_for(make_policy("ok")) as proxy:
        assert proxy.open_session("s", SAMPLING).base_url.startswith("http://127.0.0.1:")


async def test_a_session_needs_a_running_server():
    with pytest.raises(RuntimeError, match="not running"):
        proxy_for(make_policy("ok")).open_session("s", SAMPLING)


async def test_the_policy_is_told_when_a_session_ends():
    policy = make_policy("ok")
    policy.release = (released := []).append
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("first", SAMPLING)
        proxy.open_session("second", SAMPLING)
        await proxy.close_session(session)
        await proxy.close_session(session)
        assert released == ["first"]
    assert released == ["first", "second"]


async def test_after_max_turns_answers_requests_are_refused_for_good(http):
    policy = make_policy("ok", delay=0.02)
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING, max_turns=2)
        replies = await asyncio.gather(*(post(http, session, **asking(f"agent {i}")) for i in range(3)))
        assert sorted(r.status_code for r in replies) == [200, 200, 400]
        assert session.turns_exhausted
        reply = await post(http, session)
        assert_refused(reply, 400, code="max_turns_reached")
        assert reply.headers["x-should-retry"] == "false"
    assert len(policy.calls) == session.capture.num_turns == 2


async def test_an_answer_that_was_given_up_is_none_of_the_max_turns(http):
    policy = make_policy("ok", delay=60)
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING, max_turns=1)
        asked = asyncio.create_task(post(http, session))
        await policy.started.wait()
        waiting = asyncio.create_task(post(http, session, **asking("beside")))
        while session.requests < 2:
            await asyncio.sleep(0.01)
        policy.delay = 0
        asked.cancel()
        assert (await waiting).status_code == 200
    assert session.capture.num_turns == 1 and not session.turns_exhausted


class Reader:
    """Reads `CALL <command>` as a call of the tool `shell`."""

    def __init__(self):
        self.calls = 0

    def read(self, text, token_ids, tools, *, thinking=None):
        if "CALL" not in text or not tools:
            return Reading(text, "", (), unreadable="CAL" in text)
        self.calls += 1
        before, _, command = text.partition("CALL ")
        call = {"id": f"call_{self.calls}", "name": "shell", "arguments": json.dumps({"command": command})}
        return Reading(before.strip(), "", (call,), unreadable=False)


def tool_proxy(*script, **options):
    tokenizer = template_tokenizer("qwen3")
    policy = ScriptedPolicy(tokenizer, script, **options)
    return ProxyServer(policy, ChatCodec(tokenizer), 4000, tools=Reader()), policy, tokenizer


def result_of(message, text):
    return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": text}


@pytest.mark.parametrize("long_text", [0, 20_000])
async def test_a_conversation_with_tools_is_one_segment_of_sampled_ids(http, monkeypatch, long_text):
    """Wherever it is tokenized: in a thread, or at once."""
    monkeypatch.setattr(answering, "_LONG_TEXT", long_text)
    proxy, policy, tokenizer = tool_proxy("look CALL ls", "CALL cat", "done")
    async with proxy:
        session = proxy.open_session("s", SAMPLING)
        messages = list(ASK["messages"])
        for _ in range(3):
            choice = (await post(http, session, messages=messages, tools=[TOOL])).json()["choices"][0]
            messages += [choice["message"]]
            if "tool_calls" in choice["message"]:
                assert choice["finish_reason"] == "tool_calls"
                messages += [result_of(choice["message"], "a.py")]
    assert choice["message"]["content"] == "done"
    (segment,) = session.capture.segments
    ids = list(segment.token_ids)
    assert [tokenizer.decode(ids[t.answer_start : t.answer_end]) for t in segment.turns] == [
        "look CALL ls<|im_end|>",
        "CALL cat<|im_end|>",
        "done<|im_end|>",
    ]
    assert "<tool_response>\na.py\n</tool_response>" in tokenizer.decode(policy.calls[1].prompt_ids)
    for before, after in zip(policy.calls, policy.calls[1:], strict=False):
        assert after.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids
    assert [t.answers_without_tool for t in segment.turns] == [0, 0, 1]


async def test_answers_without_a_tool_end_the_session_at_the_limit(http):
    proxy, policy, _ = tool_proxy("CALL ls", "I", "am", "lost")
    async with proxy:
        session = proxy.open_session("s", SAMPLING, no_tool_limit=2)
        messages = list(ASK["messages"])
        for _ in range(3):
            answer = (await post(http, session, messages=messages, tools=[TOOL])).json()["choices"][0]["message"]
            messages += [answer, result_of(answer, "a.py") if "tool_calls" in answer else asking("on")["messages"][0]]
        assert session.no_tool_end and answer["content"] == "am"
        assert_refused(await post(http, session, messages=messages, tools=[TOOL]), 400, code="no_tool_calls")
    assert len(policy.calls) == 3 and session.counters()["no_tool_end"] == 1


async def test_a_call_that_cannot_be_read_is_text_and_counted(http):
    proxy, _, _ = tool_proxy("CAL ls")
    async with proxy:
        session = proxy.open_session("s", SAMPLING)
        choice = (await post(http, session, tools=[TOOL])).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("CAL ls", "stop")
    assert session.counters()["unreadable_tool_calls"] == 1
    assert session.capture.segments[0].turns[0].unreadable_tool_call


async def test_the_vendors_clients_stream_answers_with_tools_into_one_segment():
    proxy, policy, _ = tool_proxy("look CALL ls", "CALL ls", "CALL ls", "done")
    async with proxy:
        session = proxy.open_session("s", SAMPLING)
        schema = {"type": "object", "properties": {}}
        async with anthropic.AsyncAnthropic(
            base_url=session.anthropic_base_url, api_key="none", max_retries=0
        ) as client:
            tools = [{"name": "shell", "input_schema": schema}]
            messages = list(ASK["messages"])
            counted = await client.messages.count_tokens(model="any", messages=messages, tools=tools)
            async with client.messages.stream(model="any", max_tokens=50, messages=messages, tools=tools) as stream:
                answer = await stream.get_final_message()
            assert counted.input_tokens == len(policy.calls[0].prompt_ids)
            assert [block.type for block in answer.content] == ["text", "tool_use"]
            assert answer.content[1].input == {"command": "ls"} and answer.stop_reason == "tool_use"
            result = {"type": "tool_result", "tool_use_id": answer.content[1].id, "content": "a.py"}
            messages += [
                {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in answer.content]},
                {"role": "user", "content": [result]},
            ]
            counted = await client.messages.count_tokens(model="any", messages=messages, tools=tools)
            answer = await client.messages.create(model="any", max_tokens=50, messages=messages, tools=tools)
            assert counted.input_tokens == len(policy.calls[1].prompt_ids)
            assert answer.stop_reason == "tool_use"
            assert [model.id async for model in client.models.list()] == ["policy"]
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key="none", max_retries=0) as client:
            tools = [{"type": "function", "name": "shell", "parameters": schema, "strict": False}]
            answer = await client.responses.create(model="any", input="hello", tools=tools)
            (call,) = answer.output
            follows = [
                {"role": "user", "content": "hello"},
                call.model_dump(exclude_none=True),
                {"type": "function_call_output", "call_id": call.call_id, "output": "a.py"},
            ]
            async with client.responses.stream(model="any", input=follows, tools=tools) as stream:
                answer = await stream.get_final_response()
            assert answer.output_text == "done"
    assert [s.num_turns for s in session.capture.segments] == [2, 2]
    assert session.rejected == 0


async def test_a_base_url_answers_head_requests(http):
    async with proxy_for(make_policy("ok")) as proxy:
        session = proxy.open_session("s", SAMPLING)
        for url in (session.anthropic_base_url, f"{session.anthropic_base_url}/"):
            assert (await http.head(url)).status_code == 200
        await proxy.close_session(session)
        assert (await http.head(session.anthropic_base_url)).status_code == 401


async def test_errors_come_in_the_shape_of_the_api(http):
    async with proxy_for(make_policy("ok")) as proxy:
        session = proxy.open_session("s", SAMPLING)
        for path in ("messages", "messages/count_tokens", "messages/batches"):
            error = (await http.post(f"{session.base_url}/{path}", json={})).json()
            assert error["type"] == "error" and set(error["error"]) >= {"type", "message"}
        assert "code" in (await http.post(f"{session.base_url}/responses", json={})).json()["error"]


async def test_a_stream_is_kept_alive_while_the_policy_thinks(http, monkeypatch):
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 0.02)
    async with proxy_for(make_policy("ok", delay=0.2)) as proxy:
        session = proxy.open_session("s", SAMPLING)
        reply = await post(http, session, stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert (
        reply.text.startswith('data: {"id":"chatcmpl-waits"')
        and '"ok"' in reply.text
        and reply.text.endswith("data: [DONE]\n\n")
    )


async def test_a_failure_ends_a_stream_that_has_begun_with_an_error(http, monkeypatch):
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 0.02)
    async with proxy_for(make_policy(RuntimeError("engine is dead"), delay=0.2)) as proxy:
        session = proxy.open_session("s", SAMPLING)
        reply = await post(http, session, stream=True)
    assert reply.status_code == 200 and "engine is dead" in reply.text and "[DONE]" not in reply.text
    assert "engine is dead" in session.infra_failure and session.capture.segments == []


async def test_a_failure_before_a_stream_begins_is_a_plain_error(http):
    async with proxy_for(make_policy(RuntimeError("engine is dead"))) as proxy:
        session = proxy.open_session("s", SAMPLING)
        assert (await post(http, session, stream=True)).status_code == 502


async def test_hanging_up_on_a_stream_stops_the_generation_and_leaves_no_trace(http, monkeypatch):
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 0.02)
    policy = make_policy("ok", delay=60)
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        async with http.stream("POST", f"{session.base_url}/chat/completions", json=ASK | {"stream": True}) as reply:
            async for _ in reply.aiter_bytes():
                break
        while policy.running:
            await asyncio.sleep(0.01)
        policy.delay = 0
        assert (await post(http, session, stream=True)).status_code == 200
    assert (policy.cancelled, session.cancelled) == (1, 1)
    assert [s.num_turns for s in session.capture.segments] == [1] and session.infra_failure is None


async def test_one_sessions_secret_opens_no_others_tokens(http):
    policy = make_policy("one", "two", "three")
    async with proxy_for(policy) as proxy:
        left, right = proxy.open_session("l", SAMPLING), proxy.open_session("r", SAMPLING)
        first = (await post(http, left)).json()["choices"][0]["message"]
        await post(http, right, messages=[*ASK["messages"], first, *ASK["messages"]])
        assert left.capture.num_turns == right.capture.num_turns == 1
        assert policy.calls[1].prompt_ids == ChatCodec(tokenizer()).encode_prompt(
            [*ASK["messages"], {"role": "assistant", "content": "one"}, *ASK["messages"]]
        )


@pytest.mark.parametrize("route", ["/chat/completions", "/messages"])
async def test_half_a_character_in_a_call_is_no_fault_of_the_proxys(http, route):
    """Arguments are JSON text, which can hold it as an escape. As infra_error it would be a way out of bad rewards."""
    proxy, _, _ = tool_proxy("done")
    arguments = '{"command": "echo \\ud800"}'
    called = {"id": "c", "type": "function", "function": {"name": "shell", "arguments": arguments}}
    messages = [*ASK["messages"], {"role": "assistant", "content": "", "tool_calls": [called]}]
    messages.append({"role": "tool", "tool_call_id": "c", "content": ""})
    if route == "/messages":
        used = {"type": "tool_use", "id": "c", "name": "shell", "input": json.loads(arguments)}
        given = {"type": "tool_result", "tool_use_id": "c", "content": ""}
        messages = [ASK["messages"][0], {"role": "assistant", "content": [used]}, {"role": "user", "content": [given]}]
    async with proxy:
        session = proxy.open_session("s", SAMPLING)
        body = json.dumps({"messages": messages, "max_tokens": 9})
        reply = await http.post(session.base_url + route, content=body)
    assert reply.status_code == 200 and session.infra_failure is None


async def test_who_hangs_up_while_its_prompt_is_made_keeps_its_place_until_that_has_ended(http, monkeypatch):
    """A thread cannot be stopped: else hanging up again and again would heap up prompts."""
    monkeypatch.setattr(answering, "_LONG_TEXT", 0)
    begun, go_on = threading.Event(), threading.Event()
    policy = make_policy("ok")
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        render = session.capture.render

        def slowly(turn):
            begun.set()
            go_on.wait(20)
            render(turn)

        monkeypatch.setattr(session.capture, "render", slowly)
        asking = asyncio.create_task(post(http, session))
        await asyncio.to_thread(begun.wait, 20)
        held = session.bodies._held
        asking.cancel()
        await asyncio.sleep(0.2)
        assert session.bodies._held == held > 0
        go_on.set()
        while session.bodies._held:
            await asyncio.sleep(0.01)
    assert not session.capture.open_turns and policy.calls == []


async def test_only_the_main_conversation_that_ends_too_long_makes_a_session_overlong(http):
    instructed = {"role": "system", "content": "You make up titles."}
    async with proxy_for(make_policy("ok")) as proxy:
        session = proxy.open_session("s", SAMPLING)
        await post(http, session)
        reply = await post(http, session, messages=[instructed, *asking("long " * 400)["messages"]])
        assert reply.json()["error"]["code"] == "context_length_exceeded"
        assert not session.overlong and session.overflows == 1
        await post(http, session, **asking("long " * 400))
        assert session.overlong
        await post(http, session, **asking("in short"))
        assert not session.overlong and session.counters()["overflows"] == 2


@pytest.mark.parametrize("text", [{"content": "x"}, {"content": "x", "reasoning_content": "y" * 60_000}])
async def test_what_a_session_holds_is_bounded_whatever_is_forked(http, monkeypatch, text):
    """Text that the template leaves out counts as well."""
    monkeypatch.setattr(session_module, "MAX_WINDOWS", 16)
    policy = make_policy("ok")
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        for number in range(400):
            messages = [*ASK["messages"], {"role": "assistant", **text}, {"role": "user", "content": f"{number}"}]
            reply = await post(http, session, messages=messages)
            if reply.status_code != 200:
                break
        assert_refused(reply, 400, code="session_full")
    assert session.turns_exhausted and session.capture.held_tokens <= 16 * WINDOW + SAMPLING.max_tokens
    assert session.capture.held_chars <= 16 * WINDOW * 8 + SAMPLING.max_tokens * 20


async def test_stop_strings_that_would_keep_the_engine_busy_are_refused(http):
    policy = make_policy("ok")
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        for stop in ([f"s{i}" for i in range(33)], ["s" * 501]):
            assert_refused(await post(http, session, stop=stop), 400, code="invalid_value", param="stop")
    assert policy.calls == []


async def test_what_is_no_http_fills_no_log(caplog):
    async with proxy_for(make_policy("ok")) as proxy:
        session = proxy.open_session("s", SAMPLING)
        host, port = session.origin.removeprefix("http://").split(":")
        for nonsense in (b"GET /s/\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", b"POST / HTTP/1.1\r\nA b: c\r\n\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(nonsense)
            assert b"400" in await reader.readline()
            writer.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_session_whose_closing_is_cancelled_is_forgotten_all_the_same(http, monkeypatch):
    released = []
    policy = make_policy("ok")
    policy.release = released.append

    async def cancelled(tasks):
        raise asyncio.CancelledError

    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        path = await proxy.open_socket(session)
        monkeypatch.setattr(server, "stop_generations", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await proxy.close_session(session)
    assert released == ["s"] and not path.exists()


async def test_reading_a_long_answer_for_calls_stops_no_other_session(http):
    """Over an answer that repeats itself a parser may think for minutes."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Reader):
        def read(self, text, token_ids, tools, *, thinking=None):
            if len(text) > 2000:
                begun.set()
                go_on.wait(20)
            return super().read(text, token_ids, tools, thinking=thinking)

    tokenizer = template_tokenizer("qwen3")
    policy = ScriptedPolicy(tokenizer, ["<function=f>" * 200, "short"])
    async with ProxyServer(policy, ChatCodec(tokenizer), 9000, tools=Slow()) as proxy:
        slow, other = (proxy.open_session(name, Sampling(max_tokens=4000)) for name in "so")
        asking = asyncio.create_task(post(http, slow, tools=[TOOL]))
        await asyncio.to_thread(begun.wait, 20)
        assert (await post(http, other, tools=[TOOL])).status_code == 200
        assert not asking.done()
        await proxy.close_session(slow)
        go_on.set()
        assert (await asking).status_code == 401
    assert slow.capture.num_turns == 0, "a session that is closed does not change"


async def test_a_body_of_very_many_brackets_is_refused_before_it_is_decoded(http, monkeypatch):
    monkeypatch.setattr(server, "_BRACKETS", 100)
    async with proxy_for(make_policy("ok")) as proxy:
        session = proxy.open_session("s", SAMPLING)
        assert (await post(http, session, **asking("[{" * 40))).status_code == 200
        assert_refused(await post(http, session, **asking("[{" * 50)), 400, code="invalid_json")
