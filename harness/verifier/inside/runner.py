"""The trusted test runner. It runs inside the grading sandbox, alone: standard library only, Python >= 3.9.

    python3 -I -S -B runner.py unittest_child.py < job

The job is one JSON object: `nonce`, `deadline` (seconds), `packages` (whether the tests use what is installed) and what
the child, named by the argument, reads of it. The text of the hidden tests comes with it: it lies in no file that code
under test could look answers up in.

Two processes share the work. The child imports the code under test and runs the tests; it tells each test's status
through a pipe. The parent never imports that code. It alone knows the nonce, which it reads only after the child has
been forked and before the child may go on, and it makes itself unreadable to other processes of its user. Only a line
that starts with the nonce is a report: what tests print, or write to the descriptors of other processes, is none.

What remains: tests and code under test share the child. Code that takes the runner itself apart there (finds the pipe
or the loaded tests, and tells a sentinel from a real test) can report what it likes. The sentinels, whose names and
values are new each time and which must fail, catch whatever bends all tests alike; they do not catch code written
against this very file. Only assertions evaluated in another process would, which general test suites do not allow.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

_PR_SET_DUMPABLE = 4
_DETAIL = 500
_MAX_DETAILS = 50
_MAX_MESSAGES = 1 << 20


def main() -> None:
    """Fork the child, read the job, watch the child, report."""
    report_fd = os.dup(1)
    os.dup2(2, 1)  # all else that is printed goes to the log
    _set_dumpable(False)
    go_read, go_write = os.pipe()
    told_read, told_write = os.pipe()
    child = os.fork()
    if child == 0:
        for fd in (report_fd, go_write, told_read):
            os.close(fd)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _set_dumpable(True)
        _run_child(go_read, told_write)
    os.close(go_read)
    os.close(told_write)
    job = json.loads(sys.stdin.buffer.read())
    nonce, deadline = job.pop("nonce"), time.monotonic() + job.pop("deadline")
    _write(go_write, json.dumps(job).encode())
    os.close(go_write)
    report = _watch(child, told_read, deadline)
    _write(report_fd, f"\n{nonce} {json.dumps(report)}\n".encode())
    os._exit(0)


def _watch(child: int, told: int, deadline: float) -> dict[str, Any]:
    """What the child told until it ended, or until the deadline, when it is killed."""
    ended = os.pidfd_open(child)
    text = b""
    timed_out = False
    sources = [told, ended]
    while True:
        left = deadline - time.monotonic()
        ready = select.select(sources, [], [], max(0.0, left))[0]
        if left <= 0 or not ready:
            timed_out = True
            break
        if told not in ready:
            break  # ended, and all that it told is read; the pipe itself may be held open by what it left behind
        part = os.read(told, 1 << 16)
        text = (text + part)[: _MAX_MESSAGES + 1]
        if not part:
            sources.remove(told)
    os.kill(child, signal.SIGKILL)  # no effect on one that has ended
    status = os.waitpid(child, 0)[1]
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    return {"exit": code, "timed_out": timed_out, **_parse(text)}


def _parse(text: bytes) -> dict[str, Any]:
    """The child's messages, one JSON object a line, none of which is to be trusted."""
    statuses: list[tuple[str, str]] = []
    details: dict[str, str] = {}
    notes: list[str] = []
    end = False
    forged = "" if len(text) <= _MAX_MESSAGES else "too many messages"
    for line in text.splitlines():
        try:
            message = json.loads(line)
            kind, name, value, detail = (str(message[i]) for i in range(4))
        except (ValueError, TypeError, LookupError, RecursionError):
            forged = forged or "a message that is none of the runner's"
            continue
        if end:
            forged = forged or "a message after the last one"
        elif kind == "test":
            statuses.append((name, value))
            if detail and len(details) < _MAX_DETAILS:
                details[name] = detail[:_DETAIL]
        elif kind == "note":
            notes.append(f"{name}: {detail[:_DETAIL]}")
        elif kind == "end":
            end = True
        else:
            forged = forged or "a message of unknown kind"
    return {"statuses": statuses, "details": details, "notes": notes[:20], "end": end, "forged": forged}


def _run_child(go: int, told: int) -> NoReturn:
    """Run the tests of the job that arrives at `go`. What is used after the code under test is bound before it."""
    job = json.loads(_read_all(go))
    encode, write, leave = json.JSONEncoder().encode, os.write, os._exit

    def tell(kind: str, name: str, value: str, detail: str) -> None:
        line = encode([kind, name, value, detail[:_DETAIL]]).encode() + b"\n"
        while line:
            line = line[write(told, line) :]

    code = 1
    try:
        if job.pop("packages"):
            _add_packages()
        code = _load_child()["run_tests"](job, tell, _describe)
    except BaseException as error:  # the code under test may raise anything, SystemExit too
        tell("note", "run", "", _describe(error))
    tell("end", "", "", "")
    leave(code)


def _load_child() -> dict[str, Any]:
    """The namespace of the child's program, which lies beside this one; with -I its folder is on no path."""
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), sys.argv[1])
    namespace: dict[str, Any] = {"__name__": "child", "__file__": file}
    with open(file, encoding="utf-8") as stream:
        exec(compile(stream.read(), file, "exec"), namespace)
    return namespace


def _add_packages() -> None:
    """Put what is installed on sys.path, as -S did not; without start-up hooks, which the repository could have.

    A repository that is installed in place is on sys.path from here on, behind everything else.
    """
    import site

    site.execsitecustomize = site.execusercustomize = lambda: None
    site.main()


def _describe(error: BaseException) -> str:
    """An exception as text, though its own methods may be hostile."""
    try:
        return f"{type(error).__name__}: {error}"[:_DETAIL]
    except BaseException:
        return "an exception that cannot be shown"


def _set_dumpable(value: bool) -> None:
    """Whether other processes of this user may read this one's memory and descriptors."""
    if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, int(value), 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_DUMPABLE) failed")


def _read_all(fd: int) -> bytes:
    data = b""
    while part := os.read(fd, 1 << 16):
        data += part
    os.close(fd)
    return data


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


if __name__ == "__main__":
    main()
