"""The proxy over real HTTP; only the policy is scripted."""

import asyncio
import functools
import json
import logging

import httpx
import openai
import pytest
from support.scripted import ScriptedPolicy, generation
from support.tiny import tiny_tokenizer

from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from trainer.rollout import Outcome, Sampling

WINDOW = 400
SAMPLING = Sampling(temperature=0.7, top_p=0.9, max_tokens=100)
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
        await proxy.close_session(session)
    (call,) = policy.calls
    assert models == ["policy"]
    assert answer.choices[0].message.content == "bonjour"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == len(call.prompt_ids)
    assert answer.usage.completion_tokens == len("bonjour") + 1
    assert [t.logprob for t in answer.choices[0].logprobs.content][:2] == [-0.25, -0.25 - 1 / 64]
    assert call.session_id == "s" and call.sampling.max_tokens == 50
    assert session.capture.rollout(**WHERE).response_length == len("bonjour") + 1


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
    assert session.capture.rollout(**WHERE) is None


async def test_stop_strings_reach_the_policy_and_are_cut_from_the_text_but_not_from_the_ids(http):
    policy = make_policy("code\n```\nchatter")
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        reply = await post(http, session, stop=["\n```\n"])
    assert policy.calls[0].sampling.stop == ("\n```\n",)
    assert reply.json()["choices"][0]["message"]["content"] == "code"
    rollout = session.capture.rollout(**WHERE)
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
        ({"stream": True}, "stream", "unsupported_value"),
        ({"n": 2}, "n", "unsupported_value"),
        ({"top_logprobs": 5}, "top_logprobs", "unsupported_value"),
        ({"tools": []}, "tools", "unsupported_parameter"),
        ({"logit_bias": {"1": 1}}, "logit_bias", "unsupported_parameter"),
        ({"seed": 1}, "seed", "unsupported_parameter"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "unsupported_value"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages", "invalid_value"),
        ({"messages": [{"role": "assistant", "content": "I"}]}, "messages", "unsupported_value"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(http, changes, param, code):
    policy = make_policy("ok")
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        assert_refused(await post(http, session, **changes), 400, code=code, param=param)
        assert (await post(http, session)).status_code == 200
    assert len(policy.calls) == 1 and session.rejected == 1 and session.infra_failure is None


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


async def test_only_one_body_of_a_session_is_in_memory_at_a_time(http):
    policy = make_policy("ok", delay=60)
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        asked = asyncio.create_task(post(http, session))
        await policy.started.wait()
        host, port = session.origin.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        path = session.base_url.removeprefix(session.origin) + "/chat/completions"
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {15 << 20}\r\n\r\n".encode())
        writer.write(b" " * (15 << 20))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 1)
        writer.transport.abort()
        await proxy.close_session(session)
        await asked


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
        assert proxy.unauthorized == 3
    assert session.capture.num_turns == 1


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


async def test_concurrent_requests_of_a_session_are_served_one_after_the_other(http):
    policy = make_policy("ok", delay=0.02)
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        replies = await asyncio.gather(*(post(http, session) for _ in range(4)))
    assert [r.status_code for r in replies] == [200] * 4
    assert policy.most_running == 1
    assert [s.num_turns for s in session.capture.segments] == [1] * 4


async def test_sessions_are_served_side_by_side(http):
    policy = make_policy("ok", delay=0.05)
    async with proxy_for(policy) as proxy:
        sessions = [proxy.open_session(f"s{i}", SAMPLING) for i in range(3)]
        await asyncio.gather(*(post(http, session) for session in sessions))
    assert policy.most_running == 3


async def test_a_client_that_hangs_up_cancels_its_generation_and_may_ask_again(http):
    policy = make_policy("ok", delay=60)
    async with proxy_for(policy) as proxy:
        session = proxy.open_session("s", SAMPLING)
        with pytest.raises(httpx.ReadTimeout):
            await http.post(f"{session.base_url}/chat/completions", json=ASK, timeout=0.2)
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
