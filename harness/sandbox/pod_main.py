"""The program that runs inside a pod for the host: standard library only, Python >= 3.9, see `carried`.

    python3 -I -S -B -c PROGRAM NAME      process 1 of the container NAME; see `be_init`
    python3 -I -S -B -c BOOT LENGTH       one operation; PROGRAM and the job come by stdin

A job and an answer are a packet: eight bytes of length, a JSON object, and whatever the object announces. Lengths are
told because the exec stream cannot close stdin alone. Modules are imported by the operations that need them, as each
operation is a process of its own.

In the containers of commands this program shares its user with hostile code. It makes itself unreadable to it
(PR_SET_DUMPABLE), so that neither its memory nor its descriptors can be opened; being killed or stopped by it cannot be
helped, and is seen by the host as an answer that does not come.
"""

import errno
import json
import os
import select
import socket
import sys
import time
from typing import Any, BinaryIO

from harness.sandbox.pod_processes import hide, kill_all, wake_on_child

CONTROL = "/run/testgrad"
"""Folder of the pipes through which the keeper tells the other containers to kill all that runs in them."""

BOOT = "import sys;exec(compile(sys.stdin.buffer.read(int(sys.argv[1])),'inside','exec'))"

_CHUNK = 1 << 16

_Answer = tuple[dict[str, Any], list[bytes]]


def main(arguments: list[str]) -> None:
    """Be process 1 of the container that is named, else do the one operation that stdin asks for."""
    if arguments[0] in ("keeper", "commands", "readonly"):
        be_init(arguments[0])
    hide()
    os.umask(0o022)
    stdin = sys.stdin.buffer
    size = stdin.read(8)
    job = json.loads(stdin.read(int.from_bytes(size, "big")))
    if job["op"] == "tunnel":
        from harness.sandbox.pod_relay import serve

        return serve(job["port"])
    try:
        answer, contents = operate(job, stdin)
    except OSError as error:
        answer, contents = {"failed": f"{type(error).__name__}: {error}"}, []
    packet = json.dumps(answer).encode()
    write_all(len(packet).to_bytes(8, "big") + packet)
    for content in contents:
        write_all(content)


def operate(job: dict[str, Any], stdin: BinaryIO) -> _Answer:
    """The answer to a job, and the bytes that follow it."""
    op = job["op"]
    if op in ("write", "read", "tree"):
        from harness.sandbox.pod_files import operate_on_files

        return operate_on_files(job, stdin)
    if op in ("run", "sweep", "others"):
        from harness.sandbox import pod_commands

        if op == "run":
            return pod_commands.run(job, stdin)
        return {"left": pod_commands.sweep() if op == "sweep" else pod_commands.others()}, []
    answers = {"hello": hello, "look": look, "kill": kill, "reach": reach}
    return answers[op](job), []


def hello(job: dict[str, Any]) -> dict[str, Any]:
    return {"python": sys.executable, "version": list(sys.version_info[:2]), "uid": os.getuid()}


def look(job: dict[str, Any]) -> dict[str, Any]:
    """Whether the image has a folder at `path`."""
    return {"folder": os.path.isdir(job["path"])}


def kill(job: dict[str, Any]) -> dict[str, Any]:
    """In the keeper: make process 1 of another container kill all that runs there; whether there is one."""
    end = time.monotonic() + 1.0
    while True:
        try:
            fd = os.open(f"{CONTROL}/{job['container']}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.ENOENT):
                raise
            if time.monotonic() > end:  # it is only just starting, or dead
                return {"told": False}
            time.sleep(0.05)
            continue
        os.write(fd, b"k")
        os.close(fd)
        return {"told": True}


def reach(job: dict[str, Any]) -> dict[str, Any]:
    """Which of the given addresses and the API server's can be reached from this pod."""
    targets = [tuple(target) for target in job["targets"]]
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        targets.append((os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ.get("KUBERNETES_SERVICE_PORT", "443"))))
    reached = []
    for host, port in targets:
        try:
            socket.create_connection((host, port), 2.0).close()
        except ConnectionRefusedError:
            reached.append(f"{host}:{port} (which refused)")
        except OSError:
            continue
        else:
            reached.append(f"{host}:{port}")
    return {"reached": reached}


def write_all(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


# --- process 1 ---


def be_init(name: str) -> None:
    """Reap orphans, and kill every other process of the container whenever a byte arrives in the control pipe.

    Nothing inside can kill or stop a process 1, and kill(-1) reaches all others at once, so this ends even what kills
    whatever the host starts. The keeper makes the pipes; to others their folder is read-only. A byte of hostile code's
    own kills hostile code.
    """
    hide()
    if name == "keeper":
        for other in ("commands", "readonly"):
            os.mkfifo(f"{CONTROL}/{other}", 0o600)
        pipe = -1
    else:
        pipe = open_pipe(f"{CONTROL}/{name}")
    woken = wake_on_child()
    while True:
        ready = select.select([woken, *([pipe] if pipe >= 0 else [])], [], [], 60.0)[0]
        if pipe in ready:
            os.read(pipe, _CHUNK)
            kill_all()
        if woken in ready:
            os.read(woken, _CHUNK)
        reap()


def open_pipe(path: str) -> int:
    """The pipe at `path`, as soon as it is there; open for writing too, so that it never ends."""
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            time.sleep(0.02)


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
