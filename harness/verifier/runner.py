"""The trusted test runner. It runs inside the grading sandbox, alone: standard library only, Python >= 3.9.

    python3 -I -S -B runner.py < job

The job is one JSON object: `nonce`, `deadline` (seconds), `tests` ([[id, module, class, method], ...]), `sources`
(module -> text of the hidden tests, which lie in no file that code under test could look answers up in), `tests_dir`
(folder of their data) and `path` (folders that go before the standard library on sys.path).

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
from collections.abc import Callable
from typing import Any, NoReturn

_PACKAGE = "hidden_tests"
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
        code = _run_tests(job, tell)
    except BaseException as error:  # the code under test may raise anything, SystemExit too
        tell("note", "run", "", _describe(error))
    tell("end", "", "", "")
    leave(code)


def _run_tests(job: dict[str, Any], tell: Callable[[str, str, str, str], None]) -> int:
    """Load and run the tests, telling each status; 0 if the run as a whole went well."""
    import importlib
    import types
    import unittest

    package = types.ModuleType(_PACKAGE)  # a package of its own: no folder of the repository can stand in for it
    package.__path__ = [job["tests_dir"]]
    sys.modules[_PACKAGE] = package
    sys.path[:0] = job["path"]
    sys.meta_path.insert(0, _Sources(job.pop("sources"), job["tests_dir"]))
    known: dict[int, str] = {}
    alive: list[Any] = []  # else a test's id() could be taken over by another object
    failures: list[str] = []

    class Result(unittest.TestResult):
        def addSuccess(self, test: Any) -> None:
            self._tell(test, "passed", "")

        def addFailure(self, test: Any, err: Any) -> None:
            self._tell(test, "failed", _describe(err[1]))

        def addError(self, test: Any, err: Any) -> None:
            self._tell(test, "error", _describe(err[1]))

        def addSkip(self, test: Any, reason: str) -> None:
            self._tell(test, "skipped", str(reason))

        def addExpectedFailure(self, test: Any, err: Any) -> None:
            self._tell(test, "expected_failure", "")

        def addUnexpectedSuccess(self, test: Any) -> None:
            self._tell(test, "unexpected_success", "")

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            if err is not None and id(test) not in self.told:
                self._tell(test, "failed" if issubclass(err[0], test.failureException) else "error", _describe(err[1]))

        def __init__(self) -> None:
            super().__init__()
            self.told: set[int] = set()

        def _tell(self, test: Any, status: str, detail: str) -> None:
            if id(test) not in known:  # the failure of a class's or a module's set-up
                failures.append(str(test))
                tell("note", str(test), "", detail)
            elif id(test) not in self.told:  # a tear-down may fail after a test has failed
                self.told.add(id(test))
                tell("test", known[id(test)], status, detail)

    suite = unittest.TestSuite()
    for test_id, module, class_name, method in job["tests"]:
        try:
            loaded = importlib.import_module(f"{_PACKAGE}.{module}")
            test = getattr(loaded, class_name)(method)
        except BaseException as error:
            failures.append(test_id)
            tell("note", test_id, "", _describe(error))
            continue
        known[id(test)] = test_id
        alive.append(test)
        suite.addTest(test)
    suite.run(Result())
    return 1 if failures else 0


class _Sources:
    """Finds and loads the hidden tests, as modules of the package and, for each other's imports, by their own names."""

    def __init__(self, sources: dict[str, str], folder: str) -> None:
        import importlib.util  # here, since an import from find_spec would come back to it

        self._sources = sources
        self._folder = folder
        self._make_spec = importlib.util.spec_from_file_location

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        module = name[len(_PACKAGE) + 1 :] if name.startswith(_PACKAGE + ".") else name
        if module not in self._sources:
            return None
        file = f"{self._folder}/{module.replace('.', '/')}.py"
        spec = self._make_spec(name, file, loader=self)  # type: ignore[arg-type]
        spec.loader_state = module  # type: ignore[union-attr]
        return spec

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        text = self._sources[module.__spec__.loader_state]
        exec(compile(text, module.__file__, "exec"), module.__dict__)


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
