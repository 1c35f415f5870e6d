"""A fake API server with a node behind it (`kube_node`): it records requests, validates manifests, and fails on demand.

It speaks what the backend uses: pods, network policies, access reviews, and exec over a websocket with the protocol
v4.channel.k8s.io.
"""

import asyncio
import functools
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from aiohttp import WSMsgType, web
from support.kube_node import NodePod, node_python

from harness.sandbox import SandboxConfig
from harness.sandbox.kubernetes_access import forget
from harness.sandbox.kubernetes_config import KubernetesConfig

VERSION = "1.37"
"""Of the Kubernetes whose schemas manifests must fit."""

TOKEN = "fake-token"

# A schema is a file of a megabyte, which the package would read for each manifest.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


@dataclass
class Fault:
    """What happens instead of an answer, `times` times. `op` is an operation of the program inside, for exec.

    `kind`: "status" answers `status`; "lost" does what was asked and drops the connection; "drop" breaks an exec stream
    once the operation has begun; "hang" swallows what the pod answers.
    """

    kind: str
    method: str = ""
    part: str = ""
    op: str = ""
    container: str = ""
    status: int = 0
    message: str = "on demand"
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1


@dataclass
class FakeCluster:
    """State and record. `requests` are (method, path), `operations` (container, operation)."""

    url: str = ""
    kubeconfig: Path = Path()
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodes: dict[str, NodePod] = field(default_factory=dict)
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)
    denied: set[tuple[str, str]] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    operations: list[tuple[str, str]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    status: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    token: str = TOKEN
    deletions_kept: int = 0
    page: int = 500

    def config(self, **more: Any) -> SandboxConfig:
        """A configuration for this cluster. Keywords are of the section, except those that `SandboxConfig` knows."""
        outer = {name: more.pop(name) for name in list(more) if name in SandboxConfig.model_fields}
        usual = {"kubeconfig": self.kubeconfig, "python": node_python(), "backoff": 0.01, "grace": 20.0}
        return SandboxConfig(backend="kubernetes", kubernetes=KubernetesConfig(**(usual | more)), **outer)

    def fail(self, kind: str, **more: Any) -> None:
        self.faults.append(Fault(kind, **more))

    def count(self, method: str, end: str) -> int:
        return sum(m == method and path.endswith(end) for m, path in self.requests)

    @property
    def pod(self) -> dict[str, Any]:
        """The only pod."""
        (pod,) = self.pods.values()
        return pod

    @property
    def node(self) -> NodePod:
        (node,) = self.nodes.values()
        return node

    async def evict(self, message: str) -> None:
        """End the only pod as the kubelet does to gain room."""
        await self.node.kill()
        self.pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": message}

    def view(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The pod with its status, as the API shows it."""
        if self.status is not None:
            return pod | {"status": self.status(pod)}
        if pod.get("status"):
            return pod
        node = self.nodes.get(pod["metadata"]["name"])
        states = [] if node is None else [_state(name, c) for name, c in node.containers.items()]
        return pod | {"status": {"phase": "Running", "hostIP": "192.0.2.7", "containerStatuses": states}}


def _state(name: str, container: Any) -> dict[str, Any]:
    if container.alive:
        return {"name": name, "ready": True, "state": {"running": {}}}
    return {"name": name, "ready": False, "state": {"terminated": {"reason": container.reason, "exitCode": 137}}}


@contextmanager
def _few_certificates(path: Path) -> Iterator[None]:
    """Let the client, which speaks plain HTTP here, not read all certificates of the machine each time."""
    before = os.environ.get("SSL_CERT_FILE")
    path.touch()
    os.environ["SSL_CERT_FILE"] = str(path)
    try:
        yield
    finally:
        del os.environ["SSL_CERT_FILE"]
        if before is not None:
            os.environ["SSL_CERT_FILE"] = before


@asynccontextmanager
async def fake_cluster() -> AsyncIterator[FakeCluster]:
    """A running fake; afterwards nothing of it is left, whatever the test has left."""
    cluster = FakeCluster()
    api = _Api(cluster)
    forget()
    runner = web.AppRunner(api.app(), shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    with tempfile.TemporaryDirectory() as folder, _few_certificates(Path(folder, "none.pem")):
        cluster.url = f"http://127.0.0.1:{port}"
        cluster.kubeconfig = Path(folder, "config")
        write_kubeconfig(cluster)
        try:
            yield cluster
        finally:
            for node in cluster.nodes.values():
                await node.remove()
            await runner.cleanup()
            forget()


def write_kubeconfig(cluster: FakeCluster) -> None:
    """Write the file anew, with the token that the server asks for now."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fake", "cluster": {"server": cluster.url}}],
        "users": [{"name": "fake", "user": {"token": cluster.token}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        "current-context": "fake",
    }
    cluster.kubeconfig.write_text(yaml.safe_dump(content))


class _Api:
    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self.watch])
        pods = "/api/v1/namespaces/{namespace}/pods"
        policies = "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
        app.router.add_post(pods, self.create_pod)
        app.router.add_get(pods, self.list_pods)
        app.router.add_get(pods + "/{name}", self.get_pod)
        app.router.add_delete(pods + "/{name}", self.delete_pod)
        app.router.add_get(pods + "/{name}/exec", self.exec)
        app.router.add_post(policies, self.create_policy)
        app.router.add_get(policies + "/{name}", self.get_policy)
        app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self.review)
        return app

    @web.middleware
    async def watch(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Record, authenticate, and fail on demand."""
        self.cluster.requests.append((request.method, request.path))
        if request.headers.get("Authorization") != f"Bearer {self.cluster.token}":
            return _status(401, "Unauthorized", "no such token")
        fault = self.take(lambda f: not f.op and f.method in ("", request.method) and f.part in request.path)
        if fault is None:
            return await handler(request)  # type: ignore[no-any-return]
        if fault.kind == "status":
            return _status(fault.status, "OnDemand", fault.message, fault.headers)
        assert fault.kind == "lost"
        await handler(request)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    def take(self, wanted: Callable[[Fault], bool]) -> Fault | None:
        for fault in self.cluster.faults:
            if fault.times > 0 and wanted(fault):
                fault.times -= 1
                return fault
        return None

    async def create_pod(self, request: web.Request) -> web.Response:
        manifest = await request.json()
        self.cluster.bodies.append(manifest)
        try:
            kubernetes_validate.validate(manifest, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            return _status(422, "Invalid", str(error))
        name = manifest["metadata"]["name"]
        if name in self.cluster.pods:
            return _status(409, "AlreadyExists", f'pods "{name}" already exists')
        manifest["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z"
        self.cluster.pods[name] = manifest
        if self.cluster.status is None:
            self.cluster.nodes[name] = await asyncio.to_thread(NodePod, manifest)
        return web.json_response(self.cluster.view(manifest), status=201)

    async def list_pods(self, request: web.Request) -> web.Response:
        wanted = dict(item.split("=", 1) for item in request.query.get("labelSelector", "").split(",") if item)
        items = [p for p in self.cluster.pods.values() if wanted.items() <= p["metadata"].get("labels", {}).items()]
        start = int(request.query.get("continue", "0"))
        size = min(self.cluster.page, int(request.query.get("limit", "500")))
        token = str(start + size) if start + size < len(items) else ""
        return web.json_response({"items": items[start : start + size], "metadata": {"continue": token}})

    async def get_pod(self, request: web.Request) -> web.Response:
        pod = self.cluster.pods.get(request.match_info["name"])
        return _status(404, "NotFound", "no such pod") if pod is None else web.json_response(self.cluster.view(pod))

    async def delete_pod(self, request: web.Request) -> web.Response:
        self.cluster.bodies.append(await request.json())
        name = request.match_info["name"]
        if name not in self.cluster.pods:
            return _status(404, "NotFound", "no such pod")
        if self.cluster.deletions_kept > 0:
            self.cluster.deletions_kept -= 1
            return web.json_response({}, status=202)
        del self.cluster.pods[name]
        if (node := self.cluster.nodes.pop(name, None)) is not None:
            await node.remove()
        return web.json_response({})

    async def create_policy(self, request: web.Request) -> web.Response:
        manifest = await request.json()
        kubernetes_validate.validate(manifest, VERSION, strict=True)
        self.cluster.policies[manifest["metadata"]["name"]] = manifest
        return web.json_response(manifest, status=201)

    async def get_policy(self, request: web.Request) -> web.Response:
        policy = self.cluster.policies.get(request.match_info["name"])
        return _status(404, "NotFound", "no such policy") if policy is None else web.json_response(policy)

    async def review(self, request: web.Request) -> web.Response:
        review = await request.json()
        kubernetes_validate.validate(review, VERSION, strict=True)
        asked = review["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
        allowed = (asked["verb"], resource) not in self.cluster.denied
        return web.json_response(review | {"status": {"allowed": allowed}}, status=201)

    async def exec(self, request: web.Request) -> web.StreamResponse:
        node = self.cluster.nodes.get(request.match_info["name"])
        container = request.query["container"]
        if node is None:
            return _status(404, "NotFound", "no such pod")
        if not node.containers[container].alive:
            return _status(500, "InternalError", f"container {container} is not running")
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        assert socket.ws_protocol == "v4.channel.k8s.io"
        argv = request.query.getall("command")
        process = await node.exec(container, argv, self.cluster.env)
        await _Stream(self, socket, process, container, int(argv[-1])).serve()
        return socket


class _Stream:
    """One exec stream: messages to stdin, outputs to messages, and at the end a status."""

    def __init__(
        self, api: _Api, socket: web.WebSocketResponse, process: asyncio.subprocess.Process, container: str, skip: int
    ) -> None:
        self.api, self.socket, self.process, self.container = api, socket, process, container
        self.skip = skip  # length of the program before the job
        self.head: bytes | None = b""
        self.hangs = False

    async def serve(self) -> None:
        assert self.process.stdout is not None and self.process.stderr is not None
        outputs = [
            asyncio.create_task(self.carry(1, self.process.stdout)),
            asyncio.create_task(self.carry(2, self.process.stderr)),
        ]
        feed = asyncio.create_task(self.feed())
        ended = asyncio.gather(*outputs)
        try:
            await asyncio.wait([feed, ended], return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                return  # the caller has gone, or was cut off; as with a real node, what was started goes on
            code = await self.process.wait()
            if not self.hangs:
                await self.socket.send_bytes(b"\x03" + json.dumps(_end(code)).encode())
                await self.socket.close()
            else:
                await feed
        finally:
            for task in (feed, *outputs):
                task.cancel()
            await asyncio.gather(feed, ended, *outputs, return_exceptions=True)

    async def carry(self, channel: int, source: asyncio.StreamReader) -> None:
        while data := await source.read(8192):
            if not self.hangs:
                await self.socket.send_bytes(bytes([channel]) + data)

    async def feed(self) -> None:
        assert self.process.stdin is not None
        async for message in self.socket:
            if message.type is not WSMsgType.BINARY or message.data[:1] != b"\0":
                continue
            self.process.stdin.write(message.data[1:])
            try:
                await self.process.stdin.drain()
            except OSError:
                continue  # it has ended already, or closed its input
            if self.begun(message.data[1:]):
                assert self.socket._req is not None and self.socket._req.transport is not None
                self.socket._req.transport.abort()
                return
        self.process.stdin.close()

    def begun(self, data: bytes) -> bool:
        """Look for the operation; whether the stream is to be broken now."""
        if self.head is None:
            return False
        self.head += data
        size = int.from_bytes(self.head[self.skip : self.skip + 8], "big")
        if len(self.head) < self.skip + 8 + max(size, 1):
            return False
        op = json.loads(self.head[self.skip + 8 : self.skip + 8 + size])["op"]
        self.head = None
        self.api.cluster.operations.append((self.container, op))
        fault = self.api.take(lambda f: f.op == op and f.container in ("", self.container))
        self.hangs = fault is not None and fault.kind == "hang"
        return fault is not None and fault.kind == "drop"


def _end(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    number = 128 - code if code < 0 else code
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with exit code {number}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(number)}]},
    }


def _status(code: int, reason: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
    return web.json_response(body | {"code": code}, status=code, headers=headers)
