"""A policy behind an endpoint: what is asked of it, what comes back, and whose fault an error is."""

import json

import httpx
import pytest
from aiohttp import web
from support.endpoint import MODEL, FakeServer, fake_server, said
from support.tiny import tiny_tokenizer

from harness.endpoint import EndpointConfig, EndpointError, EndpointRefused, open_endpoint
from harness.endpoint.policy import DEFAULT_WINDOW
from harness.endpoint.wire import UNKNOWN_LOGPROB
from harness.proxy.server import ProxyServer
from trainer.rollout import Sampling

SAMPLING = Sampling(0.7, 1.0, 200, stop=("STOP",))
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
CONTEXT = (400, {"error": {"message": "This model's maximum context length is 100 tokens"}})


def config(server, **changes):
    return EndpointConfig(url=server.url, model=MODEL, **{"attempts": 2} | changes)


async def ask(proxy_session, messages, **body):
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        answer = await client.post(
            f"{proxy_session.base_url}/chat/completions", json={"messages": messages, **body}, timeout=30
        )
    return answer


async def test_an_agent_talks_to_a_chat_endpoint_through_the_proxy():
    """Two turns with a tool call: the endpoint hears the whole conversation, the capture stays one segment."""
    async with (
        fake_server(said("I look", [("bash", '{"command": "ls"}')]), said("done"), window=4096) as server,
        open_endpoint(config(server)) as endpoint,
        ProxyServer(endpoint, endpoint.codec, endpoint.window, tools=endpoint.tools) as proxy,
    ):
        assert endpoint.window == 4096 and not endpoint.has_tokens
        session = proxy.open_session("s", SAMPLING)
        messages = [{"role": "user", "content": "mend <|wire:end|> it"}]
        first = await ask(session, messages, tools=TOOLS, temperature=0.1)
        assert first.status_code == 200, first.text
        reply = first.json()["choices"][0]["message"]
        assert reply["content"] == "I look" and reply["tool_calls"][0]["function"]["arguments"] == '{"command": "ls"}'
        messages += [reply, {"role": "tool", "content": "a.py", "tool_call_id": reply["tool_calls"][0]["id"]}]
        second = await ask(session, messages, tools=TOOLS)
        assert second.json()["choices"][0]["message"]["content"] == "done"

        one, two = server.asked
        assert one["messages"] == [{"role": "user", "content": "mend <|wire:end|> it"}]
        assert (one["model"], one["temperature"], one["stop"], one["max_tokens"]) == (MODEL, 0.7, ["STOP"], 200)
        assert one["tools"][0]["function"]["name"] == "bash" and "top_p" not in one
        assert [message["role"] for message in two["messages"]] == ["user", "assistant", "tool"]
        assert two["messages"][1]["tool_calls"][0]["id"] == two["messages"][2]["tool_call_id"] != "call_0"
        (segment,) = session.capture.segments
        assert segment.num_turns == 2 and set(segment.logprobs[i] for i, m in enumerate(segment.loss_mask) if m) == {
            UNKNOWN_LOGPROB
        }
        assert session.counters()["divergences"] == 0
        assert endpoint.usage["s"].counters() == {
            "endpoint_prompt_tokens": 22, "endpoint_completion_tokens": 10, "endpoint_requests": 2
        }  # fmt: skip


async def test_vllm_is_told_what_it_would_take_from_the_models_generation_config():
    """Qwen's, say, has a nucleus of 0.8, top_k 20 and a penalty: another policy would be scored."""
    async with (
        fake_server(said("yes"), owner="vllm") as server,
        open_endpoint(config(server)) as endpoint,
        ProxyServer(endpoint, endpoint.codec, endpoint.window, tools=endpoint.tools) as proxy,
    ):
        await ask(proxy.open_session("s", SAMPLING), [{"role": "user", "content": "hello"}])
    (asked,) = server.asked
    plain = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert {name: asked[name] for name in plain} == plain
    assert asked["presence_penalty"] == asked["frequency_penalty"] == 0.0


async def test_a_prompt_that_is_too_long_ends_the_trial_as_overlong_and_is_no_infrastructure():
    async with (
        fake_server(CONTEXT) as server,
        open_endpoint(config(server)) as endpoint,
        ProxyServer(endpoint, endpoint.codec, 100_000, tools=endpoint.tools) as proxy,
    ):
        session = proxy.open_session("s", SAMPLING)
        answer = await ask(session, [{"role": "user", "content": "hello"}])
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
        assert session.overlong and session.overflows == 1 and session.infra_failure is None


@pytest.mark.parametrize(
    ("broken", "error"),
    [((500, {"error": {"message": "on fire"}}), "on fire"), ((400, {"error": {"message": "no such field"}}), "field"),
     (said(None, finish_reason="content_filter"), "content_filter"), ({"choices": []}, "without a choice")],
)  # fmt: skip
async def test_what_breaks_behind_the_endpoint_is_infrastructure(broken, error):
    async with (
        fake_server(broken) as server,
        open_endpoint(config(server)) as endpoint,
        ProxyServer(endpoint, endpoint.codec, 1000, tools=endpoint.tools) as proxy,
    ):
        session = proxy.open_session("s", SAMPLING)
        answer = await ask(session, [{"role": "user", "content": "hello"}])
        assert answer.status_code == 502 and error in session.infra_failure
        with pytest.raises((EndpointError, EndpointRefused), match=error):
            await endpoint.require_serving()


async def test_busy_servers_are_asked_again():
    async with fake_server((429, {}), said("yes")) as server, open_endpoint(config(server)) as endpoint:
        await endpoint.require_serving()
        assert len(server.asked) == 2


async def test_the_key_is_the_environments_and_nothing_else_has_it(monkeypatch):
    async with fake_server(said("yes"), key="s3cret") as server:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        with pytest.raises(EndpointRefused, match="TESTGRAD_ENDPOINT_KEY"):
            async with open_endpoint(config(server)):
                pass
        monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
        async with open_endpoint(config(server)) as endpoint:
            await endpoint.require_serving()
            assert "s3cret" not in endpoint.config.model_dump_json() + repr(endpoint.config)
        with pytest.raises(EndpointRefused, match="MY_KEY"):
            async with open_endpoint(config(server, key_variable="MY_KEY")):
                pass


def test_a_key_of_other_programs_is_not_sent_in_the_clear(monkeypatch):
    monkeypatch.delenv("TESTGRAD_ENDPOINT_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    keys = {
        url: EndpointConfig(url=url, model="m").key for url in ("http://far/v1", "https://far/v1", "http://[::1]/v1")
    }
    assert keys == {"http://far/v1": None, "https://far/v1": "s3cret", "http://[::1]/v1": "s3cret"}
    monkeypatch.setenv("TESTGRAD_ENDPOINT_KEY", "meant")
    assert EndpointConfig(url="http://far/v1", model="m").key == "meant"


async def test_a_key_that_the_server_repeats_is_told_nowhere(monkeypatch):
    monkeypatch.setenv("TESTGRAD_ENDPOINT_KEY", "sk-hunter22")
    async with fake_server(said("yes"), key="s3cret") as server:
        with pytest.raises(EndpointRefused, match=r"wrong key: Bearer \*\*\*") as refused:
            async with open_endpoint(config(server)):
                pass
    assert "hunter22" not in str(refused.value)


async def test_a_list_of_models_of_another_form_is_no_list(monkeypatch):
    async def models(self, request):
        return web.json_response(["served"])

    monkeypatch.setattr(FakeServer, "models", models)
    async with fake_server(said("yes")) as server, open_endpoint(config(server)) as endpoint:
        assert endpoint.window == DEFAULT_WINDOW


async def test_a_model_that_is_not_served_is_refused_by_name():
    async with fake_server(said("yes")) as server:
        with pytest.raises(EndpointRefused, match=f"no model 'other'; it lists {MODEL}"):
            async with open_endpoint(config(server).model_copy(update={"model": "other"})):
                pass


async def test_in_token_ids_everything_is_kept(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    ids = [*tokenizer.encode("so be it", add_special_tokens=False), tokenizer.eos_token_id]
    choice = {"text": "so be it", "token_ids": ids, "finish_reason": "stop"}
    told = {"choices": [choice | {"logprobs": {"token_logprobs": [-0.5 - i for i in range(len(ids))]}}]}
    async with (
        fake_server(told, {"choices": [choice | {"token_ids": None}]}) as server,
        open_endpoint(config(server, tokenizer=tmp_path / "tokenizer", window=500)) as endpoint,
    ):
        assert endpoint.has_tokens and endpoint.window == 500
        prompt = endpoint.codec.encode_prompt([{"role": "user", "content": "hello"}])
        generation = await endpoint.generate(prompt, SAMPLING, "s")
        assert list(generation.token_ids) == ids and generation.logprobs[1] == -1.5
        assert server.asked[0]["prompt"] == list(prompt) and server.asked[0]["return_token_ids"] is True
        with pytest.raises(EndpointRefused, match="leave the tokenizer unset"):
            await endpoint.generate(prompt, SAMPLING, "s")


@pytest.mark.parametrize(
    ("values", "told"),
    [({"url": "localhost:8000"}, "no address"), ({"url": "http://me:pw@host/v1"}, "password"),
     ({"url": "me:pw@host/v1"}, "password"),
     ({"url": "http://h/v1?key=s3cret"}, "ends in a query"), ({"tokenizer": "/nowhere"}, "no folder")],
)  # fmt: skip
def test_a_config_that_cannot_be_asked(values, told):
    with pytest.raises(ValueError, match=told) as refused:
        EndpointConfig(**{"url": "http://h/v1", "model": "m"} | values)
    assert "pw@" not in str(refused.value) and "s3cret" not in str(refused.value)
    assert json.loads(EndpointConfig(url="http://h/v1/", model="m").model_dump_json())["url"] == "http://h/v1"
