"""One Docker engine, as far as sandboxes need it, over the SDK. All calls block; many threads may call at a time.

Every failure becomes an EngineError, which is the machine's: nothing that runs in a container speaks to the engine.
"""

import contextlib
import functools
import http.client
import io
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import ModuleType
from typing import Any

from harness.sandbox.base import SandboxError, SandboxUnavailable
from harness.sandbox.docker_config import DockerHost

API_TIMEOUT = 60.0
_OLDEST_API = (1, 41)
_GONE_TIMEOUT = 30.0
_BUILD_TIMEOUT = 600.0


class EngineError(SandboxError):
    """A call that failed. `status` is the engine's HTTP status, None if it did not answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineUnreachable(SandboxUnavailable):
    """No engine answers at a host; another host may."""


@dataclass(frozen=True)
class EngineInfo:
    """What matters of the engine's own description."""

    version: str
    machine: str
    cpus: int
    root: str
    clock: float
    """Seconds that the engine's clock is ahead of ours."""


class Stream:
    """The two-way connection to a container's standard streams. Non-blocking reads and writes are the caller's."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.socket: socket.socket = getattr(raw, "_sock", raw)

    def close(self) -> None:
        response = getattr(self._raw, "_response", None)
        if response is not None:
            response.close()
        self._raw.close()


class Engine:
    """The engine at `host`; connects when first used.

    Raises:
        SandboxUnavailable: the SDK is missing.
        EngineError: the engine cannot be spoken to.
    """

    def __init__(self, host: DockerHost) -> None:
        self.host = host
        self.free_bytes: int | None = None
        """Free bytes of the engine's disk as last seen from inside a container."""
        self._sdk = _sdk()
        self._client = self._open(API_TIMEOUT)

    def _open(self, timeout: float) -> Any:
        """A client that speaks the engine's own version of the API."""
        oldest = ".".join(map(str, _OLDEST_API))
        with contextlib.closing(self._client_of(oldest, timeout)) as client, self._errors("connect"):
            version = client.version(api_version=False)["ApiVersion"]
        return self._client_of(version, timeout)

    def _client_of(self, version: str, timeout: float) -> Any:
        host = self.host
        with self._errors("connect"):
            tls = False
            if host.tls is not None:
                tls = self._sdk.tls.TLSConfig(
                    client_cert=(str(host.tls / "cert.pem"), str(host.tls / "key.pem")),
                    ca_cert=str(host.tls / "ca.pem"),
                    verify=True,
                )
            url = host.url.replace("tcp://", "https://", 1)
            client = self._sdk.APIClient(url, version, timeout, tls, max_pool_size=64)
        client.trust_env = False  # the certificates are those of the configuration, and no proxy stands between
        if host.local:
            # The SDK keeps an idle connection for every address asked; a new one costs nothing on a local socket.
            client.headers["Connection"] = "close"
        return client

    @functools.cached_property
    def info(self) -> EngineInfo:
        """The engine's description.

        Raises:
            SandboxUnavailable: it is too old, or confines less than is needed.
        """
        with self._errors("describe the engine"):
            told = self._client.info()
        version = str(told.get("ServerVersion"))
        lacks = [name for name in ("MemoryLimit", "PidsLimit", "CpuCfsQuota") if not told.get(name)]
        if told.get("OSType") != "linux":
            raise SandboxUnavailable(f"the engine at {self.host.url} runs no Linux containers")
        if tuple(map(int, self._client.api_version.split("."))) < _OLDEST_API:
            raise SandboxUnavailable(f"the engine at {self.host.url} is {version}; Docker >= 20.10 is needed")
        if not any("seccomp" in option for option in told.get("SecurityOptions") or ()):
            lacks.append("seccomp")
        if lacks:
            raise SandboxUnavailable(
                f"the engine at {self.host.url} lacks {', '.join(lacks)}; enable cgroup limits and seccomp there"
            )
        clock = datetime.fromisoformat(_microseconds(told["SystemTime"])).timestamp() - time.time()
        return EngineInfo(
            version, str(told["Architecture"]), int(told["NCPU"]), str(told.get("DockerRootDir", "")), clock
        )

    def ping(self) -> None:
        with self._errors("reach the engine"):
            self._client.ping()

    def create(self, name: str, body: Mapping[str, Any]) -> None:
        """Make the container `name` from `body`, the JSON object of the engine's API."""
        with self._errors("make a container"):
            self._client.create_container_from_config(dict(body), name)

    def start(self, name: str) -> None:
        with self._errors("start a container"):
            self._client.start(name)

    def attach(self, name: str, *, stdin: bool, output: bool) -> Stream:
        """A connection to the container's standard input, or its outputs, or both."""
        with self._errors("attach to a container"):
            params = {"stream": 1, "stdin": int(stdin), "stdout": int(output), "stderr": int(output)}
            return Stream(self._client.attach_socket(name, params=params))

    def wait(self, name: str) -> "Wait":
        """Begin to wait until the container has ended and is removed."""
        with self._errors("wait for a container"):
            url = self._url(f"containers/{name}/wait")
            response = self._client.post(url, params={"condition": "removed"}, stream=True, timeout=API_TIMEOUT)
            response.raise_for_status()
            return Wait(self, response)

    def volumes_of(self, name: str) -> dict[str, str]:
        """The names of a container's volumes by where they are mounted."""
        with self._errors("look at a container"):
            mounts = self._client.inspect_container(name)["Mounts"]
        return {mount["Destination"]: mount["Name"] for mount in mounts if mount["Type"] == "volume"}

    def endings(self, name: str) -> set[str]:
        """What the engine recorded of a container's end: `kill` if it was told to kill or stop it, `oom`."""
        now = time.time() + self.info.clock
        params = {
            "since": f"{now - 86_400:.6f}",
            "until": f"{now + 0.01:.6f}",
            "filters": json.dumps({"container": [name], "event": ["kill", "oom"]}),
        }
        with self._errors("read events"):
            response = self._client.get(self._url("events"), params=params, timeout=API_TIMEOUT)
            response.raise_for_status()
            return {json.loads(line)["Action"] for line in response.text.splitlines() if line.strip()}

    def remove(self, name: str) -> None:
        """Kill the container, remove it and its own volumes, and wait until it is gone. Harmless when it is."""
        # Meanwhile it may be removed already, which is what an engine does by itself when a container ends.
        self._until_gone("remove a container", lambda: self._client.remove_container(name, force=True, v=True))

    @contextmanager
    def archive(self, image: str, folder: str, labels: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        """A tar of `folder` as it lies in `image`, piece by piece, within a context.

        Nothing of the image is run: a container is made of it, which is never started, and removed again.

        Raises:
            EngineError: the image or the folder is not there (status 404), or the engine failed.
        """
        name = f"testgrad-{secrets.token_hex(8)}-archive"
        body = {"Image": image, "Entrypoint": ["true"], "Labels": dict(labels), "HostConfig": {"NetworkMode": "none"}}
        self.create(name, body)
        try:
            yield self._archive_of(name, folder, f"read {folder} of {image}")
        finally:
            self.remove(name)

    def _archive_of(self, name: str, folder: str, what: str) -> Iterator[bytes]:
        with self._errors(what):
            pieces, _ = self._client.get_archive(name, folder)
            yield from pieces

    def build(self, name: str, dockerfile: str) -> None:
        """Make the image `name` by a Dockerfile that copies nothing, without a network.

        Raises:
            EngineError: a step failed, with what it said.
        """
        options = {"tag": name, "network_mode": "none", "rm": True, "forcerm": True}
        client = self._open(_BUILD_TIMEOUT)
        said = ""
        with contextlib.closing(client), self._errors(f"build {name}"):
            for line in client.build(fileobj=io.BytesIO(dockerfile.encode()), decode=True, **options):
                if "error" in line:
                    raise EngineError(f"{self.host.url}: build {name}: {line['error']}: {said[-300:].strip()}")
                said += line.get("stream", "")

    def remove_volume(self, name: str) -> None:
        """Remove a volume. Harmless when it is gone.

        An engine knows a removed container no more while it still counts that container's volumes as in use, so a
        volume in use is waited for.
        """
        self._until_gone("remove a volume", lambda: self._client.remove_volume(name))

    def _until_gone(self, what: str, remove: Callable[[], object]) -> None:
        """Call `remove` until the thing is gone, for as long as the engine answers that it is not the moment (409)."""
        deadline = time.monotonic() + _GONE_TIMEOUT
        pause = 0.02
        while True:
            try:
                with self._errors(what):
                    remove()
                return
            except EngineError as error:
                if error.status == 404:
                    return
                if error.status != 409 or time.monotonic() > deadline:
                    raise
            time.sleep(pause)
            pause = min(1.0, 1.5 * pause)

    def labelled(self, label: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The containers and the volumes that bear `label`, as the engine describes them."""
        with self._errors("list what is labelled"):
            containers = self._client.containers(all=True, filters={"label": [label]})
            volumes = self._client.volumes(filters={"label": [label]}).get("Volumes") or []
        return containers, volumes

    def image(self, name: str) -> dict[str, Any] | None:
        """The engine's description of an image, None if it has none of that name."""
        try:
            with self._errors("look at an image"):
                found: dict[str, Any] = self._client.inspect_image(name)
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        return found

    def pull(self, name: str, timeout: float, stop: threading.Event) -> None:
        """Pull an image until `stop` is set; `timeout` bounds the seconds without progress."""
        repository, tag = _split(name)
        client = self._open(timeout)
        with contextlib.closing(client), self._errors(f"pull {name}"):
            for line in client.pull(repository, tag=tag, stream=True, decode=True):
                if stop.is_set():
                    raise EngineError(f"{self.host.url}: the pull of {name} was cancelled")
                if "error" in line:
                    raise EngineError(f"{self.host.url}: pull {name}: {line['error']}")

    def remove_image(self, image: str) -> bool:
        """Remove an image unless something uses it; whether it is gone."""
        try:
            with self._errors("remove an image"):
                self._client.remove_image(image)
        except EngineError as error:
            if error.status not in (404, 409):
                raise
            return error.status == 404
        return True

    def _url(self, path: str) -> str:
        return f"{self._client.base_url}/v{self._client.api_version}/{path}"

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        import requests
        import urllib3

        try:
            yield
        except self._sdk.errors.APIError as error:
            said = error.explanation or error
            raise EngineError(f"{self.host.url}: cannot {what}: {said}", error.status_code) from error
        except requests.HTTPError as error:
            code = None if error.response is None else error.response.status_code
            raise EngineError(f"{self.host.url}: cannot {what}: {error}", code) from error
        except (
            self._sdk.errors.DockerException,
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            http.client.HTTPException,
            OSError,
        ) as error:
            raise EngineError(f"{self.host.url}: cannot {what}: {error}") from error


class Wait:
    """The answer that comes when a container has been removed."""

    def __init__(self, engine: Engine, response: Any) -> None:
        self._engine = engine
        self._response = response

    def exit_code(self) -> int:
        """The container's exit code; blocks until it is removed."""
        with self._engine._errors("learn how a container ended"):
            told = self._response.json()
        if told.get("Error"):
            raise EngineError(f"{self._engine.host.url}: a container ended badly: {told['Error']}")
        return int(told["StatusCode"])

    def close(self) -> None:
        self._response.close()


@functools.lru_cache(maxsize=64)
def connect(host: DockerHost) -> Engine:
    """The engine at `host`; connected once a process.

    Raises:
        SandboxUnavailable: the SDK is missing.
        EngineUnreachable: nothing there answers.
    """
    try:
        return Engine(host)
    except EngineError as error:
        raise EngineUnreachable(
            f"no Docker engine answers: {error}. Mend: start it, set sandbox.docker.hosts or DOCKER_HOST, be root or "
            "in its group, or choose another sandbox.backend"
        ) from error


def _sdk() -> ModuleType:
    try:
        import docker
    except ImportError as error:
        raise SandboxUnavailable("the docker package is missing; install it: pip install 'testgrad[docker]'") from error
    return docker


def _split(name: str) -> tuple[str, str | None]:
    """(repository, tag or digest) of an image's name."""
    if "@" in name:
        repository, _, digest = name.partition("@")
        return repository, digest
    head, colon, tag = name.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (name, "latest")


def _microseconds(time_text: str) -> str:
    """An RFC 3339 time with nanoseconds as one that datetime reads."""
    head, dot, rest = time_text.partition(".")
    digits = rest.rstrip("Z").split("+")[0].split("-")[0]
    zone = rest[len(digits) :].replace("Z", "+00:00") if dot else ""
    return f"{head}.{digits[:6]:0<6}{zone}" if dot else time_text.replace("Z", "+00:00")
