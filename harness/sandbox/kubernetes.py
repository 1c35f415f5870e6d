"""The sandbox of a cluster: one pod a trial, no network, and nothing of the trial's code near what reads its work.

See `kubernetes_pod` for the pod. Commands run in it one at a time, as a child of a program of the host's that holds the
deadline, keeps the output small, and, when the command has ended, kills every other process of the container: a single
kill(-1), which reaches also what has left the command's session and process group, and which no fork escapes. Where
that program was itself killed or stopped, or its stream broke, the keeper has the container's process 1 do the same,
which nothing inside can prevent, and a fresh program then looks whether anything is left. /tmp and /dev/shm are emptied
each time.

What this does not do: the number of processes is limited by user (each pod has a user of its own) and by the kubelet's
podPidsLimit; a network policy is only as good as the cluster's network plugin, so that is tried out; System V shared
memory of a command lives as long as its pod; a node's kernel is shared unless `runtime_class` says otherwise.
"""

import asyncio
import json
import logging
import random
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from harness.sandbox.base import (
    WORKSPACE,
    ExecResult,
    Sandbox,
    SandboxConfig,
    SandboxError,
    SandboxUnavailable,
    check_command,
    check_mount,
    environment,
    register_sandbox,
)
from harness.sandbox.forwarder import CHECK_SCRIPT, PROXY_ORIGIN, PROXY_PORT
from harness.sandbox.kubernetes_access import check_access, check_network
from harness.sandbox.kubernetes_api import ApiError, KubeApi, acquire, open_api, release
from harness.sandbox.kubernetes_files import Parcel, moved_sources, pack_files, pack_folder, sent_bytes, unpack_tree
from harness.sandbox.kubernetes_leftovers import leftovers as leftovers
from harness.sandbox.kubernetes_leftovers import run_blocking
from harness.sandbox.kubernetes_pod import COMMANDS, CONTAINERS, KEEPER, READONLY, SHOWN, pod_manifest, process_limits
from harness.sandbox.kubernetes_state import Loss, find_loss, is_running, never_starts, why_waiting
from harness.sandbox.kubernetes_stream import PROGRAM, Answer, NoAnswer, ask
from harness.sandbox.kubernetes_tunnel import Tunnel
from harness.sandbox.owner import current_owner, labels
from harness.sandbox.shielding import to_its_end
from harness.sandbox.tree import Tree, WorkspaceError, file_parts, relative_parts

_OLDEST_PYTHON = [3, 9]
_KILLED = 137
_ENDINGS = 6  # times that a container is told to kill all that runs in it, before it is given up
_SWEEP_TIMEOUT = 20.0

_log = logging.getLogger(__name__)


@register_sandbox("kubernetes")
class KubernetesSandbox(Sandbox):
    """See the module. The pod is deleted by `stop`, by the cluster at `life_seconds`, and by the reaper."""

    def __init__(self, config: SandboxConfig) -> None:
        super().__init__(config)
        self._kube = config.kubernetes
        self._api: KubeApi | None = None
        self._name = ""  # of the pod, from before it is made until it is known to be gone
        self._running = False
        self._python = ""
        self._one_at_a_time = asyncio.Lock()
        self._files_lock = asyncio.Lock()
        self._sources: dict[str, Path] = {}
        self._lost: dict[str, str] = {}  # containers that the policy's code has brought down -> how
        self._tunnel: Tunnel | None = None

    @classmethod
    def require_isolation(cls, config: SandboxConfig) -> None:
        async def check() -> None:
            async with open_api(config.kubernetes) as api:
                await check_access(api)

        run_blocking(check())

    @classmethod
    def with_image(cls, config: SandboxConfig, image: str) -> SandboxConfig:
        return config.model_copy(update={"kubernetes": config.kubernetes.model_copy(update={"image": image})})

    @property
    def python(self) -> str:
        self._started()
        return self._python

    async def start(self) -> None:
        if self._name or self._api is not None:
            raise SandboxError("this sandbox is started already; make a new one for each trial")
        self._api = await acquire(self._kube)
        try:
            await check_access(self._api)
            async with asyncio.timeout(self._kube.start_timeout):
                await self._start(self._api)
        except TimeoutError as error:
            waiting = await to_its_end(self._why_waiting())
            await to_its_end(self.stop())
            raise SandboxError(f"no pod ran within {self._kube.start_timeout:.0f} s: {waiting}") from error
        except BaseException:
            await to_its_end(self.stop())
            raise

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        writable: bool = True,
    ) -> ExecResult:
        self._started()
        check_command(argv)
        container = COMMANDS if writable else READONLY
        data = stdin or b""
        job = {
            "op": "run",
            "argv": list(argv),
            "cwd": str(PurePosixPath(self.config.home, *relative_parts(cwd))),
            "env": environment(self._python, self.config.project_python) | dict(env or {}),
            "timeout": timeout,
            "stdin": len(data),
            "output_bytes": self.config.output_bytes,
            "limits": process_limits(self.config),
        }
        async with self._one_at_a_time:
            self._check_tunnel()
            if container in self._lost:
                return _killed(self._lost[container])
            result = await self._run(container, job, data, timeout)
        self._check_tunnel()
        return result

    async def mount_read_only(self, mount: str, files: Mapping[str, bytes]) -> None:
        check_mount(mount)
        if mount not in self._kube.mounts:
            raise SandboxUnavailable(
                f"a pod's mounts are fixed when it is made; add {mount!r} to sandbox.kubernetes.mounts "
                f"{list(self._kube.mounts)}"
            )
        place = f"{SHOWN}/{self._kube.mounts.index(mount)}"
        await self._write(place, pack_files(dict(files)))

    async def mount_runtime(self, host_dir: Path, mount: str) -> None:
        """A pod can show nothing of this host: the image must have the same folder at `mount`."""
        check_mount(mount)
        answer = await self._files({"op": "look", "path": mount})
        if not answer.told["folder"]:
            raise SandboxUnavailable(
                f"image {self._kube.image} has no folder {mount}; build {host_dir} into the image at that place, "
                "or choose sandbox.backend docker"
            )

    async def connect_proxy(self, socket: Path) -> str:
        api = self._started()
        self._tunnel = Tunnel(socket)
        await self._tunnel.open(api, self._name, PROXY_PORT)
        check = await self.exec([self._python, "-I", "-S", "-c", CHECK_SCRIPT], timeout=30.0)
        if check.exit_code != 0:
            complaint = check.stderr.decode(errors="replace").strip()[-300:]
            raise SandboxError(f"nothing answers at the far end of {socket}: {complaint or 'no message'}")
        return PROXY_ORIGIN

    async def write_files(self, files: Mapping[str, bytes | None]) -> None:
        await self._write(WORKSPACE, pack_files(files))

    async def read_file(self, relpath: str, max_bytes: int) -> bytes:
        folders, name = file_parts(relpath)
        job = {"op": "read", "path": "/".join((*folders, name)), "max_bytes": max_bytes}
        return (await self._files(job, max_content=max_bytes)).content

    async def read_tree(self, keep: Callable[[str, bytes], bool]) -> Tree:
        limits = self.config.limits
        known = json.dumps(list(self._sources)).encode()
        job = {"op": "tree", "limits": limits.model_dump(), "known": len(known), "max_sent_bytes": sent_bytes(limits)}
        try:
            answer = await self._files(job, [known], max_content=sent_bytes(limits))
        except _Gone as error:
            return Tree(overflow=str(error))
        return await asyncio.to_thread(unpack_tree, answer.told, answer.content, limits, keep, dict(self._sources))

    async def upload(self, src_dir: Path, relpath: str = ".") -> None:
        self._started()
        parcel = await asyncio.to_thread(pack_folder, src_dir, relpath)
        await self._write(WORKSPACE, parcel)
        self._sources |= parcel.sources

    def source_moved(self, src_dir: Path, place: Path) -> None:
        self._sources = moved_sources(self._sources, src_dir, place)

    async def stop(self) -> None:
        await to_its_end(self._stop())

    # --- the pod's life ---

    async def _start(self, api: KubeApi) -> None:
        uid = self.config.first_uid + random.SystemRandom().randrange(self.config.uid_count)
        self._name = f"testgrad-{secrets.token_hex(8)}"
        await api.create_pod(pod_manifest(self.config, self._name, labels(current_owner()), uid, PROGRAM))
        pod = await self._wait_until_running(api)
        for answer in await asyncio.gather(*(self._ask(container, {"op": "hello"}) for container in CONTAINERS)):
            told = answer.told
            if told["version"] < _OLDEST_PYTHON:
                raise SandboxUnavailable(
                    f"sandbox.kubernetes.python {self._kube.python} of image {self._kube.image} is "
                    f"{'.'.join(map(str, told['version']))}; 3.9 is needed"
                )
            self._python = told["python"]
        await check_network(api, self._name, pod)
        self._running = True

    async def _wait_until_running(self, api: KubeApi) -> dict[str, Any]:
        pause = 0.1
        while True:
            pod = await api.get_pod(self._name)
            if pod is None:
                raise SandboxError(f"pod {self._name} was deleted by somebody else while it started")
            if is_running(pod):
                return pod
            if reason := never_starts(pod):
                raise SandboxError(f"pod {self._name} does not start: {reason}")
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(2.0, pause * 1.5)

    async def _why_waiting(self) -> str:
        try:
            pod = await self._api.get_pod(self._name) if self._api is not None and self._name else None
        except SandboxError as error:
            return str(error)
        return "the API server did not take it" if pod is None else why_waiting(pod)

    async def _stop(self) -> None:
        self._running = False
        if self._tunnel is not None:
            await self._tunnel.close()
        if self._api is None:
            return
        if self._name:
            await self._api.delete_pod(self._name, self._kube.stop_timeout)
            self._name = ""
        api, self._api = self._api, None
        await release(api)

    def _started(self) -> KubeApi:
        if not self._running or self._api is None:
            raise SandboxError("this sandbox is not running; start it first, and do not use it after stop")
        return self._api

    # --- commands ---

    async def _run(self, container: str, job: Mapping[str, Any], data: bytes, timeout: float) -> ExecResult:
        """One command to its end, after which nothing of it lives, however this ends."""
        assert self._api is not None
        limit = 2 * self.config.output_bytes
        try:
            async with asyncio.timeout(timeout + self._kube.grace):
                answer = await ask(self._api, self._name, container, job, [data], limit)
        except TimeoutError:
            over = await to_its_end(self._is_quiet(container))
            await to_its_end(self._end_all(container))
            if container in self._lost:
                return _killed(self._lost[container])
            if over:
                raise SandboxError(f"pod {self._name}: a command ended, and its answer did not arrive") from None
            return ExecResult(124, b"", b"the command stopped what held its deadline", timed_out=True)
        except (NoAnswer, ApiError) as error:
            await to_its_end(self._end_all(container))
            if container in self._lost:
                return _killed(self._lost[container])
            if isinstance(error, NoAnswer) and error.exit_code is not None:
                return _killed("the command killed what watched it")
            raise  # no stream, or one that broke, and not because the container is gone
        except BaseException:
            await to_its_end(self._end_all(container))
            raise
        told = answer.told
        if "failed" in told:
            raise SandboxError(f"a command could not be started in pod {self._name}: {told['failed']}")
        if told["left"]:
            await to_its_end(self._end_all(container))
        return ExecResult(
            exit_code=told["exit"],
            stdout=answer.content[: told["out"]],
            stderr=answer.content[told["out"] :],
            timed_out=told["timed_out"],
            output_truncated=told["truncated"],
        )

    async def _is_quiet(self, container: str) -> bool:
        """Whether surely nothing of a command runs in a container any more."""
        assert self._api is not None
        try:
            async with asyncio.timeout(_SWEEP_TIMEOUT):
                answer = await ask(self._api, self._name, container, {"op": "others"})
        except (NoAnswer, ApiError, TimeoutError):
            return False
        return answer.told.get("left") == []

    async def _end_all(self, container: str) -> None:
        """Make sure that nothing runs in a container, by way of its process 1; else it is never used again.

        Raises:
            SandboxError: the cluster does not answer, or has lost the pod.
        """
        assert self._api is not None
        for attempt in range(_ENDINGS):
            loss = await self._loss(container)
            if loss is not None:
                self._note(container, loss)
                return
            try:
                kill = await self._ask(KEEPER, {"op": "kill", "container": container})
                async with asyncio.timeout(_SWEEP_TIMEOUT):
                    # Without a process 1 the container is dead, and the cluster will say so in a moment.
                    if kill.told["told"] and await self._sweep(container):
                        return
            except _Gone as error:
                self._lost[container] = str(error)
                return
            except (NoAnswer, ApiError, TimeoutError) as error:
                _log.info("pod %s, container %s is not yet cleared: %s", self._name, container, error)
            await asyncio.sleep(min(4.0, 0.25 * 2**attempt))
        self._lost[container] = "processes that could not be killed are left in it"

    async def _sweep(self, container: str) -> bool:
        assert self._api is not None
        answer = await ask(self._api, self._name, container, {"op": "sweep"})
        return answer.told.get("left") == []

    async def _loss(self, container: str) -> Loss | None:
        assert self._api is not None
        return find_loss(await self._api.get_pod(self._name), container)

    def _note(self, container: str, loss: Loss) -> None:
        """Remember what the policy's code has brought down; raise what it has not."""
        if not loss.policy:
            raise SandboxError(f"pod {self._name}: {loss.reason}")
        self._lost[container] = loss.reason

    def _check_tunnel(self) -> None:
        if self._tunnel is not None and self._tunnel.failure is not None:
            raise SandboxError(f"pod {self._name} has lost its way to the proxy: {self._tunnel.failure}")

    # --- files ---

    async def _write(self, root: str, parcel: Parcel) -> None:
        await self._files({"op": "write", "root": root, "entries": parcel.entries}, parcel.contents)

    async def _files(self, job: Mapping[str, Any], contents: Iterable[bytes] = (), max_content: int = 0) -> Answer:
        """What the keeper answers.

        Raises:
            WorkspaceError: what lies in the workspace does not permit it, or has cost the pod its life.
        """
        self._started()
        async with self._files_lock:
            answer = await self._ask(KEEPER, job, list(contents), max_content)
        if "refused" in answer.told:
            raise WorkspaceError(answer.told["refused"])
        return answer

    async def _ask(
        self, container: str, job: Mapping[str, Any], contents: Sequence[bytes] = (), max_content: int = 0
    ) -> Answer:
        """The answer to a job that may be done twice, asked for again while the pod lives."""
        assert self._api is not None
        attempt = 1
        while True:
            try:
                answer = await ask(self._api, self._name, container, job, contents, max_content)
                if "failed" in answer.told:
                    raise SandboxError(f"pod {self._name}: {job['op']} failed in {container}: {answer.told['failed']}")
                return answer
            except (NoAnswer, ApiError) as error:
                loss = await self._loss(container)
                if loss is not None and loss.policy:
                    raise _Gone(f"pod {self._name}: {loss.reason}") from error
                if loss is not None:
                    raise SandboxError(f"pod {self._name}: {loss.reason}") from error
                if attempt >= self._kube.attempts or isinstance(error, ApiError):
                    raise
                _log.info("pod %s: %s is asked again: %s", self._name, job["op"], error)
            await asyncio.sleep(self._kube.backoff * random.uniform(0.5, 1.5) * 2 ** (attempt - 1))
            attempt += 1


class _Gone(WorkspaceError):
    """The policy's code has cost the pod its life, and the workspace with it."""


def _killed(reason: str) -> ExecResult:
    over = "total_memory_bytes" if "OOMKilled" in reason else ""
    return ExecResult(_KILLED, b"", f"killed: {reason}\n".encode(), over_limit=over)
