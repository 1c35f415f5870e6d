"""What a single machine has running, Prefect, MLflow and a worker of flows: `testgrad up`, `testgrad down`.

They keep what they know under the run root: Prefect in `services/prefect`, MLflow in `mlflow.db` and `mlartifacts`,
the same files that a run writes when no server is up. `services/services.json` says which processes serve, each by
process id *and* start time, so that nothing is ever stopped but what was started here.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deployments.server_kinds import DATABASE_VARIABLE, HOST, KINDS, WORKER, Place
from deployments.server_process import adopt, is_running, listens, members, stop
from deployments.server_record import Server, only_one, read_servers, record_path, replace, write_servers

START_TIMEOUT_S = 180.0
PORT_TRIES = 3


class ServiceError(RuntimeError):
    """A server that does not start; the message has the end of its log and where the rest is."""


@dataclass(frozen=True)
class Services:
    """Where the live servers answer."""

    prefect_api_url: str
    prefect_ui_url: str
    mlflow_url: str


@dataclass(frozen=True)
class ServerStatus:
    name: str
    state: Literal["up", "starting", "down"]
    url: str | None
    pid: int | None


def up(root: Path, host: str = HOST, worker: bool = True) -> Services:
    """Starts what is not yet up, waits until all answer, prints the addresses. Repeating it changes nothing.

    Args:
        host: Where servers that people look at listen; whoever reaches them can do what their owner can.
        worker: Whether a worker is started, which runs flows that are asked for in Prefect's pages.

    Raises:
        ServiceError: one ended before it answered, or did not answer in three minutes; what this call started is
            stopped again. Or it is up already, and listens elsewhere.
    """
    root = root.resolve()
    (root / "services" / "prefect").mkdir(parents=True, exist_ok=True)
    with only_one(root):
        found = read_servers(root)
        servers = {name: server for name, server in found.items() if name in KINDS and is_running(server)}
        _require_host(servers, host)
        missing = [name for name in KINDS if name not in servers and (worker or name != WORKER)]
        for name in missing:
            if name in found:
                stop(found[name])  # its leader died; what may be left of it holds the port
        started: list[str] = []
        try:
            for wave in _waves(missing):
                titles = " and ".join(KINDS[name].title for name in wave)
                print(f"starting {titles}: up to a minute the first time", flush=True)
                log_starts = {name: _log_size(root, name) for name in KINDS}
                for name in wave:
                    started.append(name)
                    servers[name] = _spawn(root, name, servers, host)
                    write_servers(root, servers)
                _wait_until_healthy(root, servers, log_starts)
            if not missing:
                _wait_until_healthy(root, servers, {name: _log_size(root, name) for name in KINDS})
        except BaseException:
            for name in reversed(started):
                if name in servers:
                    stop(servers.pop(name))
            write_servers(root, servers)
            raise
        write_servers(root, servers, ready=True)
    for name, server in servers.items():
        print(f"{KINDS[name].title:8} {server.url if KINDS[name].public else 'is ready for flow runs'}")
    if host != HOST:
        print(f"these listen on {host}, without a password: anybody who reaches this machine can run code on it")
    return _services(servers)


def _waves(names: list[str]) -> list[list[str]]:
    """Which can be started together, one wave after the other: first those that need none of the others."""
    first = [name for name in names if not KINDS[name].after]
    then = [name for name in names if KINDS[name].after]
    return [wave for wave in (first, then) if wave]


def _require_host(servers: dict[str, Server], host: str) -> None:
    for name, server in servers.items():
        if KINDS[name].public and server.host != host:
            raise ServiceError(
                f"{KINDS[name].title} is up and listens on {server.host}, not on {host}; `testgrad down` first"
            )


def down(root: Path) -> None:
    """Stops the servers that `up` started under `root`, with their child processes, and nothing else."""
    root = root.resolve()
    if not record_path(root).exists():
        print("nothing is up")
        return
    with only_one(root):
        for name, server in reversed(read_servers(root).items()):  # the worker first: it would see its server go
            was_running = is_running(server)
            stop(server)
            title = KINDS[name].title if name in KINDS else name
            print(f"{title} {'stopped' if was_running else 'had ended by itself'}")
        record_path(root).unlink(missing_ok=True)


def status(root: Path) -> list[ServerStatus]:
    """What is up under `root`: one entry a server, asked now."""
    servers = read_servers(root.resolve())
    answer = []
    for name in KINDS:
        server = servers.get(name)
        if server is None or not is_running(server):
            answer.append(ServerStatus(name, "down", None, None))
        else:
            answer.append(ServerStatus(name, "up" if _is_healthy(name, server) else "starting", server.url, server.pid))
    return answer


def read_services(root: Path) -> Services | None:
    """The servers under `root` when `up` found them answering and both still live, else None.

    Looks at processes and sends no request, so that a server that is slow for a moment is not taken for absent.
    """
    root = root.resolve()
    servers = read_servers(root)
    if any(name not in servers or not is_running(servers[name]) for name in ("prefect", "mlflow")):
        return None
    is_ready = json.loads(record_path(root).read_text())["ready"]
    return _services(servers) if is_ready else None


def _services(servers: dict[str, Server]) -> Services:
    prefect = servers["prefect"].url
    return Services(prefect_api_url=f"{prefect}/api", prefect_ui_url=prefect, mlflow_url=servers["mlflow"].url)


def _spawn(root: Path, name: str, others: dict[str, Server], host: str) -> Server:
    """Starts a server on the port it had before, its usual one, or any that is free."""
    kind = KINDS[name]
    host = host if kind.public else HOST
    ports_path = root / "services" / "ports.json"
    ports: dict[str, int] = json.loads(ports_path.read_text()) if ports_path.exists() else {}
    port = _free_port(
        [ports.get(name, kind.usual_port), kind.usual_port], {server.port for server in others.values()}, host
    )
    place = Place(root, host, port, {other: server.url for other, server in others.items()})
    replace(ports_path, json.dumps({**ports, name: port}))

    # Settings of the caller's for either tool (a profile, a tracking address) are not meant for these servers, and
    # the database's password for none but the one that is told of it.
    others_own = ("PREFECT_", "MLFLOW_", DATABASE_VARIABLE)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(others_own)}
    with _log_path(root, name).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *kind.command(place)],
            cwd=root,
            env={**environment, "DO_NOT_TRACK": "1", **kind.environment(place)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_default_signals,
        )
    return Server(pid=process.pid, started=adopt(process), port=port, host=host)


def _default_signals() -> None:
    """A shell script starts `command &` with SIGINT ignored, and Prefect takes a TERM for an INT: it would not stop."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _free_port(preferred: list[int], taken: set[int], host: str = HOST) -> int:
    for port in [*(port for port in preferred if port not in taken), 0]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((host, port))
                return int(probe.getsockname()[1])
    raise ServiceError(f"no free port on {host}; name an address of this machine")


def _wait_until_healthy(root: Path, servers: dict[str, Server], log_starts: dict[str, int]) -> None:
    """Returns when all answer. A server that lost its port to another program is started again on another one."""
    began = time.monotonic()
    waiting = set(servers)
    tries = dict.fromkeys(servers, 1)
    next_word = 15.0
    while True:
        for name in sorted(waiting):
            server = servers[name]
            if _is_healthy(name, server):
                waiting.remove(name)
            elif not is_running(server):
                said = _log_path(root, name).read_bytes()[log_starts[name] :].decode(errors="replace")
                if "address already in use" not in said.lower() or tries[name] == PORT_TRIES:
                    raise ServiceError(_failure(root, name, "ended before it answered", said))
                stop(server)
                tries[name] += 1
                log_starts[name] = _log_size(root, name)
                servers[name] = _spawn(root, name, servers, server.host)
                write_servers(root, servers)
        if not waiting:
            return
        waited = time.monotonic() - began
        names = " and ".join(KINDS[name].title for name in sorted(waiting))
        if waited > START_TIMEOUT_S:
            name = min(waiting)
            said = _log_path(root, name).read_bytes()[log_starts[name] :].decode(errors="replace")
            raise ServiceError(_failure(root, name, f"did not answer within {START_TIMEOUT_S:.0f} s", said))
        if waited > next_word:
            print(f"waiting for {names}, {waited:.0f} s", flush=True)
            next_word += 15.0
        time.sleep(0.3)


def _failure(root: Path, name: str, what: str, said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"{KINDS[name].title} {what}: {lines[-1] if lines else 'it said nothing'} (log: {_log_path(root, name)})"


def _is_healthy(name: str, server: Server) -> bool:
    """Whether the answer is 200, and comes from this server and not from a stranger on its port."""
    if not any(listens(pid, server.port) for pid in members(server)):
        return False
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a configured proxy cannot reach loopback
    try:
        with opener.open(server.url + KINDS[name].health, timeout=3) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _log_path(root: Path, name: str) -> Path:
    return root / "services" / f"{name}.log"


def _log_size(root: Path, name: str) -> int:
    path = _log_path(root, name)
    return path.stat().st_size if path.exists() else 0
