"""The proxy: an endpoint per trial, in the shapes that agents know, in front of a policy that speaks token ids."""

import asyncio
import hashlib
import json
import logging
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

from aiohttp import hdrs, web
from aiohttp.http_exceptions import BadHttpMessage

from harness.proxy.answering import Answerer, PolicyFailure, stop_generations, unauthorized
from harness.proxy.budget import ByteBudget
from harness.proxy.capture import Capture
from harness.proxy.codec import ChatCodec
from harness.proxy.doorway import Doorway
from harness.proxy.session import Session
from harness.proxy.surfaces.base import SURFACES, Answer, Call, RequestError, Surface
from harness.proxy.tool_calls import ToolReader
from trainer.rollout import Policy, ReleasingPolicy, Sampling

MAX_BODY_BYTES = 16 * 2**20
KEEP_ALIVE_SECONDS = 5.0
"""How long a client that wants a stream hears nothing before it is told that the policy still thinks."""

_BODIES = 2
"""Bodies of the largest size that one session may have in memory."""
_BRACKETS = 500_000
"""Brackets that open in a body, those in its texts included. As objects, tiny ones take 40 times their bytes."""
_REMEMBERED = 4096
"""Closed sessions whose late requests are still told from guesses."""

_log = logging.getLogger(__name__)
# For each thing sent that is no HTTP aiohttp would log a traceback: an agent could fill the disk. What fails in a
# handler is logged here.
_http_log = logging.getLogger(f"{__name__}.http")
_http_log.setLevel(logging.CRITICAL)


class ProxyServer:
    """Serves what agents speak, under `/s/{secret}`, on a loopback port.

    That is OpenAI's chat completions, responses and models, and Anthropic's messages and count_tokens, streaming or
    not; an answer is computed whole, and a stream is its replay. It runs on the caller's event loop. Each trial gets a
    session with a secret of its own; closing the session revokes it at once. An agent on the host uses the port; one in
    a sandbox has no network and comes in by `open_socket`, where it finds its own session only. `window` is the
    policy's context length in tokens: prompt and answer together. `tools` reads tool calls and thinking from answers.

    How an answer is sampled is the session's business: temperature and top_p of a request are overridden (and
    counted), the limit of tokens is the least of the request's, the session's and the room left in the window, stop
    strings of both are used. A session's requests are worked on a few at a time, and two bodies of the largest size at
    most are read, so that what a session costs in memory is bounded.
    """

    def __init__(
        self,
        policy: Policy,
        codec: ChatCodec,
        window: int,
        *,
        tools: ToolReader | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.unauthorized = 0
        """Requests without a session, those of closed ones included."""
        self.revoked = 0
        """Those of sessions that were closed."""
        self._answerer = Answerer(policy, codec, window, tools)
        self._policy = policy
        self._codec = codec
        self._window = window
        self._max_body_bytes = max_body_bytes
        self._sessions: dict[bytes, Session] = {}
        self._closed: OrderedDict[bytes, weakref.ref[Session]] = OrderedDict()
        self._runner: web.AppRunner | None = None
        self._origin = ""

    async def __aenter__(self) -> Self:
        import harness.proxy.surfaces.registry  # noqa: F401  (fills SURFACES; slow: paid here, not by the first request)

        app = web.Application(client_max_size=self._max_body_bytes, middlewares=[_errors_in_shape])
        for route, surface in SURFACES.items():
            app.router.add_post(f"/s/{{secret}}{route}", self._handler(surface))
        app.router.add_post("/s/{secret}/v1/messages/count_tokens", self._count_tokens)
        app.router.add_get("/s/{secret}/v1/models", self._models)
        for root in ("/s/{secret}", "/s/{secret}/"):
            app.router.add_head(root, self._head)
        # The access log would write the secrets; cancellation stops generations that nobody waits for any more.
        self._runner = web.AppRunner(
            app, access_log=None, logger=_http_log, handler_cancellation=True, shutdown_timeout=1.0
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self._origin = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(self.close_session(session) for session in list(self._sessions.values())))
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def open_session(
        self, session_id: str, sampling: Sampling, *, max_turns: int | None = None, no_tool_limit: int = 0
    ) -> Session:
        """A new session; its `base_url` is live until `close_session`.

        After `max_turns` answers, or `no_tool_limit` in a row without a tool call, requests are refused in a way that
        no client tries again.

        Raises:
            RuntimeError: the server is not running.
        """
        if self._runner is None:
            raise RuntimeError("the proxy is not running; open sessions inside `async with ProxyServer(...)`")
        session = Session(
            session_id,
            sampling,
            Capture(self._codec),
            self._origin,
            ByteBudget(_BODIES * self._max_body_bytes),
            self._window,
            max_turns=max_turns,
            no_tool_limit=no_tool_limit,
        )
        self._sessions[_key(session.secret)] = session
        return session

    async def open_socket(self, session: Session) -> Path:
        """Serve `session`, and no other, by a Unix socket of its own as well; its path, for `Sandbox.connect_proxy`.

        The socket is closed and removed with the session.

        Raises:
            RuntimeError: the server is not running, or the session is closed.
            OSError: no socket can be made in the system's temporary directory.
        """
        if self._runner is None or self._runner.server is None or session.closed:
            raise RuntimeError("a socket is opened for an open session of a running proxy")
        if session.doorway is None:
            session.doorway = Doorway(self._runner.server)
        return session.doorway.path

    async def close_session(self, session: Session) -> None:
        """Revoke the session's secret, stop its generations, close its socket, and let the policy forget it.

        From here on its capture does not change. Who asks once more by a connection that is still open is told 401, and
        counted in `unauthorized`.
        """
        if session.closed:
            return
        session.closed = True
        key = _key(session.secret)
        self._sessions.pop(key, None)
        self._closed[key] = weakref.ref(session)
        if len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)
        doorway, session.doorway = session.doorway, None
        try:
            await stop_generations(list(session.generations))
        finally:  # whoever closes may be cancelled once more, and nobody would come back to this
            try:
                if doorway is not None:
                    await doorway.close()
            finally:
                if isinstance(self._policy, ReleasingPolicy):
                    self._policy.release(session.session_id)

    async def _head(self, request: web.Request) -> web.Response:
        self._session_of(request)
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        from harness.proxy.surfaces.registry import models

        self._session_of(request)
        return web.json_response(models(anthropic="anthropic-version" in request.headers))

    async def _count_tokens(self, request: web.Request) -> web.StreamResponse:
        from harness.proxy.surfaces.registry import parse_count

        session = self._session_of(request)
        session.requests += 1
        surface = SURFACES["/v1/messages"]
        try:
            async with session.slots, session.bodies.held(self._size(request)):
                call = parse_count(await _read_json(request), query=request.query)
                return web.json_response({"input_tokens": await self._answerer.count_tokens(session, call)})
        except Exception as error:
            return self._refusal(session, error).response(surface)

    def _handler(self, surface: Surface) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            session = self._session_of(request)
            session.requests += 1
            stream = _Stream(request, surface)
            try:
                async with session.slots, session.bodies.held(self._size(request)):
                    call = surface.parse(await _read_json(request), query=request.query)
                    answer = await self._answer(session, call, stream if call.stream else None)
                    if call.stream:
                        await stream.send(b"".join(surface.events(call, answer, self._codec)))
                        return await stream.end()
                    return web.json_response(surface.complete(call, answer, self._codec))
            except ConnectionError:
                # The client hung up while it was written to; the policy's failures have another type.
                return stream.response
            except Exception as error:
                refusal = self._refusal(session, error)
                if stream.response.prepared:
                    return await stream.fail(refusal)
                return refusal.response(surface)

        return handle

    async def _answer(self, session: Session, call: Call, stream: "_Stream | None") -> Answer:
        """The answer; a client that wants a stream is kept company until it is there."""
        if stream is None:
            return await self._answerer.answer(session, call)
        answering = asyncio.create_task(self._answerer.answer(session, call))
        try:
            while not (await asyncio.wait({answering}, timeout=KEEP_ALIVE_SECONDS))[0]:
                await stream.send(stream.surface.keep_alive)
        finally:
            if not answering.done():
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)
        return answering.result()

    def _refusal(self, session: Session, error: Exception) -> "_Refusal":
        """What to tell the client of an error, after counting it."""
        if isinstance(error, web.HTTPRequestEntityTooLarge):
            error = RequestError(
                f"the request body is larger than {self._max_body_bytes} bytes",
                code="request_entity_too_large",
                status=413,
            )
        if isinstance(error, RequestError):
            if session.closed:
                session.revoked_requests += 1
                self.revoked += 1
            else:
                session.rejected += 1
            return _Refusal(error.status, str(error), error.code, error.param)
        if isinstance(error, PolicyFailure):
            session.infra_failure = session.infra_failure or str(error)
            _log.error("session %s: %s", session.session_id, error)
            return _Refusal(502, str(error), "policy_failure")
        # A fault of the proxy's own, which the agent's requests may have brought about.
        session.proxy_failed = True
        session.infra_failure = session.infra_failure or f"the proxy failed: {type(error).__name__}: {error}"
        _log.error("session %s: the proxy failed", session.session_id, exc_info=error)
        return _Refusal(500, session.infra_failure, "proxy_failure")

    def _session_of(self, request: web.Request) -> Session:
        # Looked up by digest, so that the time it takes tells nothing about the secrets.
        key = _key(request.match_info["secret"])
        session = self._sessions.get(key)
        by_socket = isinstance(request.get_extra_info("sockname"), str)
        if session is None or (by_socket and (session.doorway is None or not session.doorway.leads_here(request))):
            self.unauthorized += 1
            if session is None and key in self._closed:
                self.revoked += 1
                if closed := self._closed[key]():
                    closed.revoked_requests += 1
            raise unauthorized()
        return session

    def _size(self, request: web.Request) -> int:
        """Bytes that the request's body may take.

        Raises:
            HTTPRequestEntityTooLarge: it says itself that it is too large.
        """
        if request.content_length is None or hdrs.CONTENT_ENCODING in request.headers:
            return self._max_body_bytes
        if request.content_length > self._max_body_bytes:
            raise web.HTTPRequestEntityTooLarge(self._max_body_bytes, request.content_length)
        return request.content_length


class _Refusal(NamedTuple):
    """An error as it is told to a client."""

    status: int
    message: str
    code: str
    param: str | None = None

    def response(self, surface: Surface) -> web.Response:
        body = surface.error(self.status, self.message, self.code, self.param)
        # Both vendors' clients would ask again after some of these, which is of no use with any.
        return web.json_response(body, status=self.status, headers={"x-should-retry": "false"})


class _Stream:
    """A response of server-sent events, which begins with the first thing that is sent."""

    def __init__(self, request: web.Request, surface: Surface) -> None:
        self.surface = surface
        self.response = web.StreamResponse(
            headers={hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8", hdrs.CACHE_CONTROL: "no-cache"}
        )
        self._request = request

    async def send(self, frames: bytes) -> None:
        """Send whole frames.

        Raises:
            ConnectionError: the client hung up.
        """
        if not self.response.prepared:
            await self.response.prepare(self._request)
        await self.response.write(frames)

    async def end(self) -> web.StreamResponse:
        await self.response.write_eof()
        return self.response

    async def fail(self, refusal: _Refusal) -> web.StreamResponse:
        """End a stream that has begun with an error."""
        try:
            await self.send(self.surface.error_event(*refusal))
            await self.end()
        except ConnectionError:
            pass  # nobody is left to be told
        return self.response


def _key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


async def _read_json(request: web.Request) -> Any:
    try:
        body = await request.read()
    except (web.RequestPayloadError, BadHttpMessage, ConnectionError) as error:
        # The client's doing: a chunk or a compression that is none, or a connection that broke off.
        raise RequestError(f"the request body cannot be read: {error}", code="invalid_body") from error
    if body.count(b"{") + body.count(b"[") > _BRACKETS:
        raise RequestError(f"the request body has more than {_BRACKETS} opening brackets", code="invalid_json")
    try:
        return json.loads(body)
    except ValueError as error:
        raise RequestError(f"the request body is not JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise RequestError("the request body is nested too deeply", code="invalid_json") from error


@web.middleware
async def _errors_in_shape(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Errors that no surface's handler has seen, in the shape of the API that the path belongs to."""
    try:
        return await handler(request)
    except RequestError as error:
        refusal = _Refusal(error.status, str(error), error.code, error.param)
    except web.HTTPException as error:
        refusal = _Refusal(error.status, error.text or error.reason, error.reason.lower().replace(" ", "_"))
    anthropic = "/v1/messages" in request.path or "anthropic-version" in request.headers
    return refusal.response(SURFACES["/v1/messages" if anthropic else "/v1/chat/completions"])
