"""The API server: requests that are tried again where that is safe, and exec streams.

The official client gives the configuration (kubeconfig, credentials, TLS) and the transport. Objects stay plain JSON.
One client serves all sandboxes of an event loop that talk to the same cluster, and is closed with the last of them.
"""

import asyncio
import json
import logging
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

import aiohttp

from harness.sandbox.base import SandboxError, SandboxUnavailable
from harness.sandbox.kubernetes_config import KubernetesConfig

EXEC_PROTOCOL = "v4.channel.k8s.io"
_MAX_PAUSE = 30.0
_RETRIED = frozenset({409, 429, *range(500, 600)})
_HEARTBEAT = 30.0
_CLOSE_TIMEOUT = 2.0

_log = logging.getLogger(__name__)

T = TypeVar("T")


class ApiError(SandboxError):
    """The API server refuses, or does not answer: `status` is then 0. `reason` is Kubernetes' word for it.

    `retry_after`: seconds that it asks to wait.
    """

    def __init__(self, message: str, status: int, reason: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after

    @property
    def passing(self) -> bool:
        """Whether it may go another way when tried again. A full namespace has room when a trial ends."""
        if self.status == 403:
            return "exceeded quota" in str(self)
        return self.status == 0 or (self.status in _RETRIED and self.reason != "AlreadyExists")


class KubeApi:
    """A connection to one cluster, bound to the running event loop. Made by `open_api`."""

    def __init__(self, kube: KubernetesConfig) -> None:
        self.kube = kube
        self.users = 0
        self._rest: Any = None
        self._streams: Any = None
        self._replaced: list[Any] = []  # clients with old credentials, whose streams may still be in use
        self._loads = 0
        self._loading = asyncio.Lock()

    async def load(self) -> None:
        """Read configuration and credentials, anew if they were read before.

        Raises:
            SandboxUnavailable: the client is not installed, or there is no usable configuration.
        """
        try:
            from kubernetes.aio import client, config
            from kubernetes.aio.stream import WsApiClient
        except ImportError as error:
            raise SandboxUnavailable(
                f"sandbox.backend kubernetes needs the Kubernetes client ({error}); mend: pip install 'testgrad[k8s]'"
            ) from error
        kube, settings = self.kube, client.Configuration()
        try:
            if kube.kubeconfig is None and kube.context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                config.load_incluster_config(client_configuration=settings)
            else:
                file = None if kube.kubeconfig is None else str(kube.kubeconfig)
                await config.load_kube_config(
                    config_file=file, context=kube.context, client_configuration=settings, persist_config=False
                )
        except (config.ConfigException, OSError, ValueError) as error:
            raise SandboxUnavailable(
                f"there is no usable cluster configuration: {error}; set sandbox.kubernetes.kubeconfig and context "
                "(`kubectl config get-contexts` lists them)"
            ) from error
        settings.connection_pool_maxsize = 0  # no bound: each command that runs holds a connection
        settings.retries = None  # ours, below, know which requests may be repeated
        self._replaced += [used for used in (self._rest, self._streams) if used is not None]
        self._rest, self._streams = client.ApiClient(settings), WsApiClient(settings, heartbeat=_HEARTBEAT)
        self._loads += 1

    async def close(self) -> None:
        for used in (*self._replaced, self._rest, self._streams):
            if used is not None:
                await used.close()
        self._replaced, self._rest, self._streams = [], None, None

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The answer's JSON. Turned away (409, 429, 5xx) or without answer it is tried again, with growing pauses.

        A request may thus be made twice: callers must know an object that is there already as their own, and take
        "not found" for a deletion that has been done.

        Raises:
            ApiError: refused, or all tries used up.
        """

        async def once() -> dict[str, Any]:
            return await self._request_once(method, path, body, query)

        return await self._persist(once)

    async def _persist(self, once: Callable[[], Awaitable[T]]) -> T:
        """The result of `once()`, tried up to `attempts` times; a 401 reloads the credentials first."""
        reloaded = False
        attempt = 1
        while True:
            loads = self._loads
            try:
                return await once()
            except ApiError as error:
                if error.status == 401 and not reloaded:
                    reloaded = True
                    await self._reload(loads)
                    continue
                if attempt >= self.kube.attempts or not error.passing:
                    raise
                pause = _pause(self.kube.backoff, attempt, error.retry_after)
                _log.info("Kubernetes: %s; next try in %.1f s", error, pause)
            attempt += 1
            await asyncio.sleep(pause)

    async def _request_once(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None
    ) -> dict[str, Any]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        what = f"{method} {path}"
        try:
            request = await self._rest.param_serialize(
                method, path, header_params=headers, query_params=list((query or {}).items()), body=body,
                auth_settings=["BearerToken"],
            )  # fmt: skip
            method, url, header, content, _ = request
            response = await self._rest.call_api(
                method, url, header, body=content, _request_timeout=aiohttp.ClientTimeout(self.kube.request_timeout)
            )
            data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(f"{what}: no answer: {type(error).__name__}: {error}", 0) from error
        if 200 <= response.status < 300:
            try:
                answer = json.loads(data)
            except ValueError as error:
                raise ApiError(f"{what}: the answer is no JSON: {data[:80]!r}", 0) from error
            return dict(answer)
        raise _refusal(what, response.status, response.headers, data)

    @asynccontextmanager
    async def exec_stream(
        self, pod: str, container: str, argv: Sequence[str]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A stream to `argv`, started in a container. Opening it is tried again; a stream that is open never is.

        Raises:
            ApiError: it cannot be opened.
        """
        path = f"/api/v1/namespaces/{self.kube.namespace}/pods/{pod}/exec"
        query = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true"), ("tty", "false")]
        query += [("command", word) for word in argv]

        async def once() -> aiohttp.ClientWebSocketResponse:
            return await self._connect(path, query)

        socket = await self._persist(once)
        try:
            yield socket
        finally:
            # Closed the hard way in the end: a far end that does not answer must not hold up a trial's end.
            closing = asyncio.ensure_future(_close(socket))
            await asyncio.shield(closing)

    async def _connect(self, path: str, query: list[tuple[str, str]]) -> aiohttp.ClientWebSocketResponse:
        try:
            _, url, headers, _, _ = await self._streams.param_serialize(
                "GET", path, header_params={"sec-websocket-protocol": EXEC_PROTOCOL}, auth_settings=["BearerToken"]
            )
            opened = await self._streams.call_api(
                "GET", f"{url}?{urlencode(query)}", header_params=headers, _preload_content=False
            )
            return await asyncio.wait_for(opened.response, self.kube.request_timeout)
        except aiohttp.WSServerHandshakeError as error:
            raise ApiError(f"exec: HTTP {error.status}: {error.message}", error.status) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(f"exec: no answer: {type(error).__name__}: {error}", 0) from error

    async def _reload(self, loads: int) -> None:
        async with self._loading:
            if self._loads == loads:  # else another request has just done it
                await self.load()

    # --- what the backend asks for ---

    async def get_pod(self, name: str) -> dict[str, Any] | None:
        """The pod, None if there is none."""
        try:
            return await self.request("GET", self._pods(name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def create_pod(self, manifest: Mapping[str, Any]) -> None:
        """Make the pod. One of its name that is there already is our own, from a try whose answer got lost."""
        try:
            await self.request("POST", self._pods(), body=manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def delete_pod(self, name: str, timeout: float) -> None:
        """Delete the pod at once and wait until it is gone.

        Raises:
            ApiError: it cannot be deleted, or is still there after `timeout` seconds.
        """
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        end = asyncio.get_running_loop().time() + timeout
        pause = 0.05
        while True:
            try:
                await self.request("DELETE", self._pods(name), body=options)
            except ApiError as error:
                if error.status != 404:
                    raise
            if await self.get_pod(name) is None:
                return
            if asyncio.get_running_loop().time() > end:
                raise ApiError(
                    f"pod {name} is still there {timeout:.0f} s after its deletion; its node may be lost: "
                    f"kubectl -n {self.kube.namespace} delete pod {name} --grace-period=0 --force",
                    0,
                    "NotDeleted",
                )
            await asyncio.sleep(pause)
            pause = min(2.0, pause * 2)

    async def list_pods(self, selector: Mapping[str, str]) -> list[dict[str, Any]]:
        """Pods of the namespace that bear the labels `selector`, in pages, so that no answer is huge."""
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in selector.items()), "limit": "500"}
        found: list[dict[str, Any]] = []
        while True:
            page = await self.request("GET", self._pods(), query=query)
            found += page.get("items") or []
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return found
            query = query | {"continue": token}

    def _pods(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.kube.namespace}/pods" + (f"/{name}" if name else "")


_shared: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, KubeApi]]" = WeakKeyDictionary()


@asynccontextmanager
async def open_api(kube: KubernetesConfig) -> AsyncIterator[KubeApi]:
    """The cluster's client for a while; see `acquire`."""
    api = await acquire(kube)
    try:
        yield api
    finally:
        await release(api)


async def acquire(kube: KubernetesConfig) -> KubeApi:
    """The client that this event loop's users of the same configuration share; give it back with `release`.

    Raises:
        SandboxUnavailable: no client package, or no usable configuration.
    """
    of_loop = _shared.setdefault(asyncio.get_running_loop(), {})
    key = kube.model_dump_json()
    api = of_loop.setdefault(key, KubeApi(kube))
    api.users += 1
    try:
        async with api._loading:
            if api._rest is None:
                await api.load()
    except BaseException:
        await release(api)
        raise
    return api


async def release(api: KubeApi) -> None:
    api.users -= 1
    if api.users == 0:
        of_loop = _shared[asyncio.get_running_loop()]
        of_loop.pop(api.kube.model_dump_json(), None)
        await asyncio.shield(api.close())


def _refusal(what: str, status: int, headers: Mapping[str, str], data: bytes) -> ApiError:
    try:
        told = json.loads(data)
        message, reason = str(told.get("message", "")), str(told.get("reason", ""))
    except (ValueError, AttributeError):
        message, reason = data[:200].decode(errors="replace"), ""
    after = headers.get("Retry-After", "")
    text = f"{what}: HTTP {status}: {message or 'no message'}"
    return ApiError(text, status, reason, float(after) if after.isdigit() else 0.0)


def _pause(first: float, attempt: int, retry_after: float) -> float:
    """Seconds before the next try: doubled each time and jittered, so that many who failed together come apart."""
    grown = min(_MAX_PAUSE, first * 2 ** (attempt - 1))
    return min(_MAX_PAUSE, max(retry_after, grown * random.uniform(0.5, 1.5)))


async def _close(socket: aiohttp.ClientWebSocketResponse) -> None:
    try:
        await asyncio.wait_for(socket.close(), _CLOSE_TIMEOUT)
    except (TimeoutError, aiohttp.ClientError, OSError):
        _log.debug("an exec stream did not close by itself")
