"""Thousands of requests that are broken in every way: the proxy refuses them in each API's words and forgets them."""

import asyncio
import gc
import json
import logging
import os
import random
import re
import weakref
from collections import Counter

from support.chat_templates import template_tokenizer
from support.fuzz import ROUTES, Talker, http, mutated, scrambled, send
from support.scripted import generation

from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.proxy.tool_calls import Reading
from trainer.rollout import Outcome, Sampling

REQUESTS = int(os.environ.get("TESTGRAD_FUZZ_REQUESTS", "3000"))
WINDOW = 3000
MAX_BODY = 32 * 2**10
SESSIONS = 4
AT_ONCE = 8
ROUND = 400
"""Requests after which the sessions are closed, looked at, and replaced by new ones."""

LAST_FRAMES = {
    "chat": [b"data: [DONE]"],
    "responses": [b"event: response.completed", b"event: response.incomplete"],
    "messages": [b"event: message_stop"],
}
CALL = re.compile(r"<tool_call>(\w+)</tool_call>")


class Tagging:
    """A policy whose answers hold the session's tag, and which remembers them."""

    def __init__(self, tokenizer):
        self.tokenizer, self.answers, self.running = tokenizer, Counter(), 0

    async def generate(self, prompt_ids, sampling, session_id):
        self.running += 1
        try:
            if b"slow" in bytes(i for i in prompt_ids[-60:] if i < 256):
                await asyncio.sleep(30)
            await asyncio.sleep(0)
        finally:
            self.running -= 1
        number = sum(self.answers.values())
        call = "<tool_call>read</tool_call>" if number % 3 == 0 else ""
        text = f"{session_id} answers {number} {call}"
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        self.answers[session_id, tuple(ids)] += 1
        return generation(ids)


class Calls:
    """Reads calls in the policy's own spelling; vLLM's parsers would take seconds to load."""

    made = 0

    def read(self, text, token_ids, tools, *, thinking=None):
        names = CALL.findall(text) if tools else []
        calls = []
        for name in names:
            Calls.made += 1
            calls.append({"id": f"call_{Calls.made:024x}", "name": name, "arguments": '{"path": "x"}'})
        return Reading(CALL.sub("", text) if names else text, "", tuple(calls), unreadable=False)


class Fuzzer:
    """Sends requests to the sessions of a proxy and holds every reply against what the API promises."""

    def __init__(self, proxy, policy, rng):
        self.proxy, self.policy, self.rng = proxy, policy, rng
        self.seen = Counter()
        self.number = 0
        self.closed = []
        self.alive = []
        self.renew()

    def renew(self):
        self.sessions = [self.proxy.open_session(f"tag{self.number}x{i}x", Sampling(max_tokens=200)) for i in range(4)]
        self.alive += [weakref.ref(session) for session in self.sessions]
        self.number += 1
        self.talkers = {
            (session.session_id, surface): Talker(surface, session.session_id, self.rng)
            for session in self.sessions
            for surface in ROUTES
        }
        self.locks = {key: asyncio.Lock() for key in self.talkers}

    async def one(self, origin):
        session = self.rng.choice(self.sessions)
        surface = self.rng.choice(["chat", "responses", "messages", "messages", "count", "chat"])
        kind = self.rng.choice(
            ["good"] * 5
            + ["mutated"] * 9
            + ["scrambled"] * 4
            + ["twice", "oversized", "slow", "wrong secret", "revoked", "method", "route", "headers", "http", "half"]
        )
        path = f"/s/{session.secret}{ROUTES[surface]}"
        key = (session.session_id, surface)
        # a conversation is talked by one client; mutations of it come from everywhere
        async with self.locks[key]:
            talker = self.talkers[key]
            body = talker.body()
            data = json.dumps(body).encode()
            if kind == "good":
                reply = await send(origin, http("POST", path, data))
                self.expect(reply, surface, body, {200}, session)
                self.hear(talker, reply, body)
            elif kind == "twice":
                replies = await asyncio.gather(*(send(origin, http("POST", path, data)) for _ in range(2)))
                for reply in replies:
                    self.expect(reply, surface, body, {200}, session)
                self.hear(talker, replies[0], body)
            else:
                await getattr(self, kind.replace(" ", "_"))(origin, path, surface, body, data, session)
                talker.history.clear()
        self.seen[kind] += 1

    async def mutated(self, origin, path, surface, body, data, session):
        changed = mutated(body, self.rng)
        reply = await send(origin, http("POST", path, json.dumps(changed).encode()))
        self.expect(reply, surface, changed, {200, 400}, session)

    async def scrambled(self, origin, path, surface, body, data, session):
        broken = scrambled(data, self.rng)
        reply = await send(origin, http("POST", path, broken))
        self.expect(reply, surface, None, {413} if len(broken) > MAX_BODY else {400}, session)

    async def oversized(self, origin, path, surface, body, data, session):
        size = MAX_BODY + self.rng.choice([1, 1000, 10 * MAX_BODY])
        reply = await send(origin, http("POST", path, data[:-1] + b" " * (size - len(data)) + b"}"))
        self.expect(reply, surface, None, {413}, session)

    async def slow(self, origin, path, surface, body, data, session):
        if surface == "count":
            return
        slow = json.dumps(body).replace(" says ", " slow ").encode()
        await send(origin, http("POST", path, slow), hang_up=0.02)

    async def wrong_secret(self, origin, path, surface, body, data, session):
        secret = self.rng.choice(
            [session.secret[:-1], session.secret + "A", "x", "%2e%2e", "%C3%A9", session.session_id]
        )
        reply = await send(origin, http("POST", path.replace(session.secret, secret), data))
        self.expect(reply, surface, body, {401}, None)

    async def revoked(self, origin, path, surface, body, data, session):
        secret = self.rng.choice(self.closed) if self.closed else "never-was"
        reply = await send(origin, http("POST", path.replace(session.secret, secret), data))
        self.expect(reply, surface, body, {401}, None)

    async def method(self, origin, path, surface, body, data, session):
        reply = await send(origin, http(self.rng.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS"]), path, data))
        self.expect(reply, surface, None, {405}, None)

    async def route(self, origin, path, surface, body, data, session):
        tail = self.rng.choice(["/../models", "/v2", "//", "/v1/embeddings", "?a=%00", "/v1/responses/resp_1/cancel"])
        reply = await send(origin, http("POST", path + tail, data))
        assert reply.status in ((200, 400, 404, 405) if tail.startswith("?") else (400, 404, 405)), reply

    async def headers(self, origin, path, surface, body, data, session):
        odd = self.rng.choice(
            [
                {"content-encoding": "gzip"},
                {"content-encoding": "deflate"},
                {"content-type": "multipart/form-data"},
                {"content-length": str(len(data) + 50)},
                {"expect": "nothing"},
                {"accept": "x" * 4000},
                {"content-type": "application/json; charset=utf-7"},
            ]
        )
        # with a length too great the server waits for the rest, until the client leaves
        short = "content-length" in odd
        reply = await send(origin, http("POST", path, data, odd), hang_up=0.02 if short else None)
        assert short or reply.status in (200, 400, 415, 417), (odd, reply)

    async def http(self, origin, path, surface, body, data, session):
        raw = self.rng.choice(
            [
                b"\x00" * 64,
                b"GET\r\n\r\n",
                http("POST", path, b"zz\r\n" + data, {"transfer-encoding": "chunked", "content-length": "1"}),
                http("POST", path, b"", {"x": "y" * 20_000}),
                http("POST", "/" + "a" * 20_000, data),
                http("PO ST", path, data),
                http("POST", f"/s/é{path}", data),
                http("POST", path, data).replace(b"HTTP/1.1", b"HTTP/9.9"),
            ]
        )
        reply = await send(origin, raw)
        assert reply.status in (0, 400, 404, 405, 411, 413, 414, 431, 505), (raw[:100], reply)

    async def half(self, origin, path, surface, body, data, session):
        raw = http("POST", path, data)
        await send(origin, raw[: self.rng.randrange(1, len(raw))], hang_up=0.005)

    def hear(self, talker, reply, body):
        if body.get("stream"):
            talker.history.clear()  # what streams carry is the surfaces' own test
        elif talker.surface != "count":
            talker.heard(reply.json())

    def expect(self, reply, surface, body, statuses, session):
        """The status, the shape that the API gives it, and nothing of another session in it."""
        assert reply.status in statuses, (reply.status, statuses, reply.body[:400], str(body)[:600])
        tags = set(re.findall(rb"tag\d+x\d+x", reply.body))
        assert not tags or (session is not None and tags == {session.session_id.encode()}), tags
        if reply.status == 200:
            if reply.headers["content-type"].startswith("text/event-stream"):
                last = reply.body.rstrip(b"\n").rpartition(b"\n\n")[2]
                assert any(end in last for end in LAST_FRAMES[surface]), last
            else:
                assert isinstance(reply.json(), dict)
            return
        error = reply.json()
        if surface in ("messages", "count"):
            assert error["type"] == "error" and {"type", "message"} <= set(error["error"]), error
        else:
            assert {"message", "type", "param", "code"} <= set(error["error"]), error
        assert error["error"]["message"]

    async def close(self):
        """Close the sessions; each holds what the policy sampled for it, and nothing else."""
        for session in self.sessions:
            await self.proxy.close_session(session)
            assert session.infra_failure is None, session.infra_failure
            rollouts = session.capture.rollouts(
                "all", session_id="s", task_id="t", group_id="g", step=1, outcome=Outcome.COMPLETED
            )
            captured = Counter()
            for segment, rollout in zip(session.capture.segments, rollouts, strict=True):
                text = self.policy.tokenizer.decode(rollout.token_ids)
                assert set(re.findall(r"tag\d+x\d+x", text)) <= {session.session_id}
                for turn in segment.turns:
                    captured[tuple(rollout.token_ids[turn.answer_start : turn.answer_end])] += 1
                assert sum(rollout.loss_mask) == sum(turn.answer_end - turn.answer_start for turn in segment.turns)
            sampled = {ids: n for (name, ids), n in self.policy.answers.items() if name == session.session_id}
            # an answer whose client was gone by then may have been thrown away; none is made up, none is there twice
            assert all(n <= sampled.get(ids, 0) for ids, n in captured.items())
            self.closed.append(session.secret)
        self.sessions, self.talkers, self.locks = [], {}, {}


async def test_no_request_breaks_the_proxy(caplog):
    caplog.set_level(logging.WARNING)
    tokenizer = template_tokenizer("chatml_tools")
    policy, rng = Tagging(tokenizer), random.Random(7)
    unheard = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
    before = asyncio.all_tasks()
    codec = ChatCodec(tokenizer)
    async with ProxyServer(policy, codec, WINDOW, tools=Calls(), max_body_bytes=MAX_BODY) as proxy:
        fuzzer = Fuzzer(proxy, policy, rng)
        origin = fuzzer.sessions[0].origin
        left = REQUESTS
        while left > 0:
            count = min(ROUND, left)
            left -= count
            turns = iter(range(count))

            async def client(turns=turns):
                for _ in turns:
                    await fuzzer.one(origin)

            await asyncio.gather(*(client() for _ in range(AT_ONCE)))
            await fuzzer.close()
            fuzzer.renew()
        await fuzzer.close()
    await asyncio.sleep(0)
    assert policy.running == 0
    assert asyncio.all_tasks() == before
    gc.collect()
    assert [ref() for ref in fuzzer.alive if ref() is not None] == []
    assert unheard == []
    # the HTTP library logs what is no HTTP at all
    assert [r for r in caplog.records if r.levelno >= logging.ERROR and not r.name.startswith("aiohttp")] == []
    assert sum(fuzzer.seen.values()) == REQUESTS and len(fuzzer.seen) == 13
