"""What outlives a flow: a Ray cluster with its engines, a Prefect server, and a process that flows are forked from."""

import multiprocessing
import multiprocessing.util
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

import httpx

from bench.crash.flow_process import Start, main
from bench.crash.strikes import MARK, marked, naming, wait_until_gone
from deployments.process_environment import process_environment
from deployments.server_kinds import HOST, KINDS, Place

CLUSTER = "r"
"""Folder of the cluster's temporary files, in that of all."""
PATIENCE = 180.0
"""Seconds within which a server must answer."""


class Leak(RuntimeError):
    """Something is left that should have ended with its owner."""


class World:
    """Servers by name, each restarted when it has died. Made by `world`."""

    def __init__(self, folder: Path, temporary: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.matrix = folder, secrets.token_hex(6)
        self._environment = dict(environment) | {"TMPDIR": str(temporary)}
        self._servers: dict[str, subprocess.Popen[str]] = {}
        self._flows: list[Any] = []
        self._port = _free_port()
        self._address = ""
        self._forks = multiprocessing.get_context("forkserver")
        self._forks.set_forkserver_preload(["bench.crash.preload"])

    @property
    def prefect_url(self) -> str:
        return f"http://{HOST}:{self._port}/api"

    def keep_up(self) -> list[str]:
        """Start what is not running. Returns the names of what was started."""
        dead = [name for name in ("prefect", "ray") if not self._is_up(name)]
        for name in dead:
            wait_until_gone(partial(marked, f"{self.matrix}:{name}"), 20)
            self._start_prefect() if name == "prefect" else self._start_ray()
        for name in dead:
            self._await_prefect() if name == "prefect" else self._await_ray()
        return dead

    def start(self, values: dict[str, Any], root: Path, name: str, cuts: Any = ()) -> tuple[Any, Start]:
        """A flow's process, started, and what it was started with."""
        start = Start(
            values, root, tuple(cuts), self.matrix,
            self._environment | {"RAY_ADDRESS": self._address},
            (self.folder / "services" / "prefect" / "prefect.db", root / "mlflow.db"),
            self.folder / f"{name}.log", self.folder / f"{name}.notes",
        )  # fmt: skip
        process = self._forks.Process(target=main, args=(start,), name=name)
        process.start()
        self._flows.append(process)
        return process, start

    def require_tidy(self, part: str, seconds: float = 30.0) -> None:
        """Raises Leak if a process of `part` is left after so long."""
        left = wait_until_gone(partial(marked, f"{self.matrix}:{part}"), seconds)
        if left:
            raise Leak(f"processes that {part or 'the matrix'} started are left: {left}")

    def close(self) -> None:
        """Stop the servers, and a flow that is left when the matrix fails."""
        for flow in self._flows:
            if flow.is_alive():
                flow.kill()
                flow.join()
        for name, server in self._servers.items():
            assert server.stdin is not None
            server.stdin.close()
            if name == "prefect":
                server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()

    def _is_up(self, name: str) -> bool:
        return name in self._servers and self._servers[name].poll() is None

    def _start_prefect(self) -> None:
        kind = KINDS["prefect"]
        place = Place(self.folder, HOST, self._port, {})
        (self.folder / "services" / "prefect").mkdir(parents=True, exist_ok=True)
        self._spawn("prefect", kind.command(place), process_environment(self.folder) | kind.environment(place))

    def _await_prefect(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if httpx.get(f"{self.prefect_url}/health", timeout=5).is_success:
                    return
            except httpx.HTTPError:
                if time.monotonic() > deadline or not self._is_up("prefect"):
                    raise
            time.sleep(0.2)

    def _start_ray(self) -> None:
        folder = Path(self._environment["TMPDIR"]) / CLUSTER
        folder.mkdir(exist_ok=True)
        self._spawn("ray", ["-m", "bench.crash.cluster"], {"TMPDIR": str(folder)}, stdout=subprocess.PIPE)

    def _await_ray(self) -> None:
        output = self._servers["ray"].stdout
        assert output is not None
        self._address = output.readline().strip()
        if not self._address:
            raise RuntimeError(f"no Ray cluster came up; see {self.folder / 'ray.log'}")

    def _spawn(
        self, name: str, command: list[str], environment: Mapping[str, str], stdout: int | IO[str] | None = None
    ) -> None:
        with open(self.folder / f"{name}.log", "a") as log:
            self._servers[name] = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=stdout or log,
                stderr=log,
                text=True,
                start_new_session=True,
                env=os.environ | self._environment | dict(environment) | {MARK: f"{self.matrix}:{name}"},
            )


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """The servers, up.

    Raises:
        Leak: at the end a process is left, or a file of a flow.
    """
    # sockets live there, and their paths are limited to about 100 bytes
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg", dir="/tmp")))
        temporary.chmod(0o755)  # sandboxes, which have users of their own, must reach their workspaces
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        # or it would be in ours, and outlive it
        multiprocessing.util.get_temp_dir()
        made = World(folder, temporary, token)
        # Prefect reads its settings when it is imported, which is before the first flow is forked
        settings = process_environment(folder) | {"PREFECT_API_URL": made.prefect_url, "PREFECT_LOGGING_LEVEL": "ERROR"}
        stack.enter_context(patch.dict(os.environ, settings | token | {"TMPDIR": str(temporary)}))
        try:
            made.keep_up()
            yield made
        finally:
            made.close()
        made.require_tidy("")
        if sandboxes := wait_until_gone(partial(naming, temporary), 30):
            raise Leak(f"sandboxes are left: {sandboxes}")
        # what engines leave that were killed goes with the cluster
        left = sorted(path.name for path in temporary.iterdir() if path.name != CLUSTER)
        if left:
            raise Leak(f"files are left: {left}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
