"""Runs a command with a Docker engine at hand: `python -m deployments.docker.daemon -- COMMAND...`.

If an engine answers already (at DOCKER_HOST, else at the usual socket) it is used as it is. Otherwise a private one is
started: its images, containers and socket lie in a temporary folder, it has no bridge and touches no firewall rule, and
DOCKER_HOST tells the command where it is. It ends with the command, and the folder goes. Needs root; where `dockerd` is
missing on Debian or Ubuntu, `docker.io` is installed.
"""

import ctypes
import fcntl
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

USUAL_HOST = "unix:///var/run/docker.sock"
PREFIX = "testgrad-docker-"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
_LONGEST_BASE = 40
_PR_SET_PDEATHSIG = 1
_MNT_DETACH = 2


class DaemonError(RuntimeError):
    """No engine can be had here; the message says why."""


@contextmanager
def engine(install: bool = True) -> Iterator[str]:
    """The URL of an engine that answers, started for the time of the context if there is none.

    `install` allows to install what is missing for that.

    Raises:
        DaemonError: none answers and none can be started.
    """
    host = os.environ.get("DOCKER_HOST") or USUAL_HOST
    if answers(host):
        yield host
        return
    with private_engine(install=install) as private:
        yield private


@contextmanager
def private_engine(options: Sequence[str] = (), install: bool = False) -> Iterator[str]:
    """The URL of an engine that is started for the time of the context, with further `options` of dockerd.

    Raises:
        DaemonError: none can be started.
    """
    dockerd = find_dockerd(install)
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_base()))
    lock = _lock(folder)
    try:
        process = _start(dockerd, folder, options)
        try:
            yield _await_answer(process, folder)
        finally:
            _stop(process)
    finally:
        _remove(folder)
        if lock is not None:
            os.close(lock)


def answers(host: str) -> bool:
    """Whether an engine answers at `host`; of one behind TLS, whether its port is open."""
    if not host.startswith("unix://"):
        name, _, port = host.partition("://")[2].rpartition(":")
        try:
            socket.create_connection((name, int(port)), 5).close()
        except (OSError, ValueError):
            return False
        return True
    connection = http.client.HTTPConnection("localhost", timeout=5)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.settimeout(5)
        connection.sock.connect(host.removeprefix("unix://"))
        connection.request("GET", "/_ping")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def find_dockerd(install: bool) -> str:
    """The `dockerd` program, installed first where that is allowed and possible.

    Raises:
        DaemonError: it is missing, or may not be run.
    """
    if os.geteuid() != 0:
        raise DaemonError("no Docker engine answers, and only root can start one; start it, or set DOCKER_HOST")
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    found = shutil.which("dockerd", path=path)
    if found is None and install:
        _install()
        found = shutil.which("dockerd", path=path)
    if found is None:
        raise DaemonError("dockerd is not installed; `python -m deployments.docker.daemon` does that on Debian")
    return found


def _install() -> None:
    if shutil.which("apt-get") is None:
        raise DaemonError("dockerd is missing, and so is apt-get to install it with; install Docker >= 20.10")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "docker.io"]
    with _no_services():
        for command in (["apt-get", "update", "-qq"], install):
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            if done.returncode != 0:
                tail = done.stdout.decode(errors="replace")[-500:]
                raise DaemonError(f"{' '.join(command)} failed: {tail}")


@contextmanager
def _no_services() -> Iterator[None]:
    """Keep packages from starting their services while they are installed."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


def _start(dockerd: str, folder: Path, options: Sequence[str]) -> "subprocess.Popen[bytes]":
    libc = ctypes.CDLL(None)
    scratch = folder / "tmp"  # a containerd that is slow to answer is made to write its stacks to TMPDIR
    scratch.mkdir()
    command = [
        dockerd,
        *("--host", f"unix://{folder}/docker.sock", "--group", "root"),
        *("--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")),
        *("--pidfile", str(folder / "pid")),
        *("--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
        *("--log-level", "warn", "--shutdown-timeout", "2"),
        *options,
    ]
    with open(folder / "log", "wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch)},
            start_new_session=True,
            # When this process is killed the engine ends too, and its containers with it.
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )


def _await_answer(process: "subprocess.Popen[bytes]", folder: Path) -> str:
    host = f"unix://{folder}/docker.sock"
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers(host):
        if process.poll() is not None or time.monotonic() > deadline:
            tail = (folder / "log").read_text(errors="replace")[-1500:]
            state = "did not answer in time" if process.poll() is None else f"ended with code {process.returncode}"
            raise DaemonError(f"dockerd {state}. The end of its log:\n{tail}")
        time.sleep(0.1)
    return host


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def sweep() -> None:
    """Remove the folders of engines whose starter was killed before it could."""
    for folder in _base().glob(PREFIX + "*"):
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid() or answers(f"unix://{folder}/docker.sock"):
            continue
        lock = _lock(folder)
        if lock is not None:
            _remove(folder)
            os.close(lock)


def _base() -> Path:
    """The folder for temporary files, or one with a shorter name: the paths of sockets below it have 104 bytes."""
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) <= _LONGEST_BASE else Path("/tmp")


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock while this process lives; None if another one does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(folder: Path) -> None:
    libc = ctypes.CDLL(None)
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for place in reversed(mounted):  # the latest first: they may lie in one another
        if Path(place).is_relative_to(folder):
            libc.umount2(os.fsencode(place), _MNT_DETACH)
    shutil.rmtree(folder, ignore_errors=True)


def main(argv: list[str]) -> int:
    """Run the command after `--` and return its exit code."""
    command = argv[1:] if argv[:1] == ["--"] else argv
    if not command:
        print("usage: python -m deployments.docker.daemon -- COMMAND...", file=sys.stderr)
        return 2
    try:
        with engine() as host:
            # Its own signals reach the command too; this process waits, to stop the engine afterwards.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, lambda *_: None)
            child = subprocess.Popen(command, env={**os.environ, "DOCKER_HOST": host})
            signal.signal(signal.SIGTERM, lambda *_: child.terminate())
            signal.signal(signal.SIGHUP, lambda *_: child.terminate())
            return child.wait()
    except DaemonError as error:
        print(f"deployments.docker.daemon: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
