"""The proxy: an OpenAI-shaped endpoint per trial, in front of a policy that speaks token ids."""

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from harness.proxy.capture import Capture
from harness.proxy.codec import ChatCodec, CodecError
from harness.proxy.doorway import Doorway
from harness.proxy.request import ChatRequest, RequestError, parse_request
from harness.proxy.session import Session
from trainer.rollout import Generation, Policy, Sampling

MAX_BODY_BYTES = 16 * 2**20
_CANCEL_GRACE_SECONDS = 10.0

_log = logging.getLogger(__name__)


class PolicyFailure(RuntimeError):
    """The serving side broke; nothing the agent did can cause it."""


class ProxyServer:
    """Serves `POST /s/{secret}/v1/chat/completions` and `GET /s/{secret}/v1/models` on a loopback port.

    It runs on the caller's event loop. Each trial gets a session with a secret of its own; closing the session revokes
    it at once. An agent on the host uses the port; one in a sandbox has no network and comes in by `open_socket`, where
    it finds its own session only. `window` is the policy's context length in tokens: prompt and answer together.

    How an answer is sampled is the session's business: temperature and top_p of a request are overridden (and
    counted), `max_tokens` is the least of the request's, the session's and the room left in the window, `stop` strings
    of both are used. The server reads and handles one request at a time for each session, so that what a session costs
    in memory is bounded.
    """

    def __init__(self, policy: Policy, codec: ChatCodec, window: int, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        if window < 2:
            raise ValueError(f"window is {window} tokens; it must hold at least one prompt and one answer token")
        self.unauthorized = 0
        self._policy = policy
        self._codec = codec
        self._window = window
        self._max_body_bytes = max_body_bytes
        self._sessions: dict[bytes, Session] = {}
        self._runner: web.AppRunner | None = None
        self._origin = ""

    async def __aenter__(self) -> Self:
        import harness.proxy.response  # noqa: F401  (slow: paid here, not by the first request)

        app = web.Application(client_max_size=self._max_body_bytes, middlewares=[_errors_as_json])
        app.router.add_post("/s/{secret}/v1/chat/completions", self._chat_completions)
        app.router.add_get("/s/{secret}/v1/models", self._models)
        # The access log would write the secrets; cancellation stops generations that nobody waits for any more.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
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

    def open_session(self, session_id: str, sampling: Sampling) -> Session:
        """A new session; its `base_url` is live until `close_session`.

        Raises:
            RuntimeError: the server is not running.
        """
        if self._runner is None:
            raise RuntimeError("the proxy is not running; open sessions inside `async with ProxyServer(...)`")
        session = Session(session_id, sampling, Capture(self._codec), self._origin)
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
        """Revoke the session's secret, stop its generation and close its socket.

        From here on its capture does not change. Who asks once more by a connection that is still open is told 401, and
        counted in `unauthorized`.
        """
        session.closed = True
        self._sessions.pop(_key(session.secret), None)
        if session.generation is not None:
            await _cancel(session.generation)
        doorway, session.doorway = session.doorway, None
        if doorway is not None:
            await doorway.close()

    async def _models(self, request: web.Request) -> web.Response:
        from harness.proxy import response

        self._session_of(request)
        return web.json_response(response.models())

    async def _chat_completions(self, request: web.Request) -> web.Response:
        session = self._session_of(request)
        session.requests += 1
        try:
            async with session.lock:
                answer = await self._answer(session, await _read_json(request))
        except (RequestError, web.HTTPRequestEntityTooLarge):
            session.rejected += 1
            raise
        except PolicyFailure as failure:
            session.infra_failure = session.infra_failure or str(failure)
            _log.error("session %s: %s", session.session_id, failure)
            return _error(502, str(failure), type_="server_error", code="policy_failure")
        except Exception as error:
            # A fault of the proxy's own: what was captured is not to be trusted.
            session.infra_failure = session.infra_failure or f"the proxy failed: {type(error).__name__}: {error}"
            _log.exception("session %s: the proxy failed", session.session_id)
            return _error(500, session.infra_failure, type_="server_error", code="proxy_failure")
        return web.json_response(answer)

    async def _answer(self, session: Session, body: Any) -> dict[str, Any]:
        from harness.proxy import response

        if session.closed:
            raise _unauthorized()
        request = parse_request(body)
        try:
            prompt = session.capture.begin_turn(request.chat_messages)
        except CodecError as error:
            raise RequestError(f"messages: {error}", code="invalid_value", param="messages") from error
        try:
            sampling = self._sampling(session, request, len(prompt))
            generation = await self._generate(session, prompt, sampling)
            text = self._codec.decode_answer(generation, sampling.stop)
            session.capture.end_turn(generation, text)
        finally:
            session.capture.abort_turn()
        return response.completion(generation, text, len(prompt), codec=self._codec, with_logprobs=request.logprobs)

    def _sampling(self, session: Session, request: ChatRequest, prompt_length: int) -> Sampling:
        own = session.sampling
        room = self._window - prompt_length
        if room < 1:
            session.overlong = True
            raise RequestError(
                f"messages: the prompt has {prompt_length} tokens and the context length is {self._window}; "
                "shorten the conversation",
                code="context_length_exceeded",
                param="messages",
            )
        if request.temperature not in (None, own.temperature) or request.top_p not in (None, own.top_p):
            session.overrides += 1
        return Sampling(
            temperature=own.temperature,
            top_p=own.top_p,
            max_tokens=min(request.token_limit or own.max_tokens, own.max_tokens, room),
            stop=tuple(dict.fromkeys((*own.stop, *request.stop_strings))),
        )

    async def _generate(self, session: Session, prompt: list[int], sampling: Sampling) -> Generation:
        """Sample in a task of its own, so that hanging up and revoking can both stop it.

        Raises:
            PolicyFailure: the policy raised, or its answer cannot be trained on.
            RequestError: the session was closed meanwhile.
        """
        started = time.monotonic()
        task = asyncio.create_task(self._policy.generate(prompt, sampling, session.session_id))
        session.generation = task
        try:
            await asyncio.wait({task})
        finally:
            session.generate_seconds += time.monotonic() - started
            session.generation = None
            if not task.done():  # the client hung up
                session.cancelled += 1
                await _cancel(task)
        error = None if task.cancelled() else task.exception()
        if session.closed:
            session.cancelled += 1
            raise _unauthorized()
        if task.cancelled():
            raise PolicyFailure("the policy cancelled a generation by itself")
        if error is not None:
            raise PolicyFailure(f"the policy failed: {type(error).__name__}: {error}") from error
        generation = task.result()
        if not isinstance(generation, Generation) or not generation.token_ids:
            raise PolicyFailure(f"the policy answered with no Generation, or one without tokens: {generation!r:.200}")
        if generation.finish_reason == "abort":
            raise PolicyFailure("the policy aborted a generation that nobody cancelled")
        return generation

    def _session_of(self, request: web.Request) -> Session:
        # Looked up by digest, so that the time it takes tells nothing about the secrets.
        session = self._sessions.get(_key(request.match_info["secret"]))
        by_socket = isinstance(request.get_extra_info("sockname"), str)
        if session is None or (by_socket and (session.doorway is None or not session.doorway.leads_here(request))):
            self.unauthorized += 1
            raise _unauthorized()
        return session


async def _cancel(task: asyncio.Task[Generation]) -> None:
    """Stop a generation; one that does not listen is left behind, and whatever it brings is thrown away."""
    task.cancel()
    await asyncio.wait({task}, timeout=_CANCEL_GRACE_SECONDS)


def _key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _unauthorized() -> RequestError:
    return RequestError("unknown or closed session", code="invalid_api_key", status=401)


async def _read_json(request: web.Request) -> Any:
    try:
        body = await request.read()
    except (web.RequestPayloadError, BadHttpMessage, ConnectionError) as error:
        # The client's doing: a chunk or a compression that is none, or a connection that broke off.
        raise RequestError(f"the request body cannot be read: {error}", code="invalid_body") from error
    try:
        return json.loads(body)
    except ValueError as error:
        raise RequestError(f"the request body is not JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise RequestError("the request body is nested too deeply", code="invalid_json") from error


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return _error(error.status, str(error), code=error.code, param=error.param)
    except web.HTTPException as error:
        return _error(error.status, error.text or error.reason, code=error.reason.lower().replace(" ", "_"))


def _error(
    status: int, message: str, *, code: str, param: str | None = None, type_: str = "invalid_request_error"
) -> web.Response:
    body = {"error": {"message": message, "type": type_, "param": param, "code": code}}
    return web.json_response(body, status=status)
