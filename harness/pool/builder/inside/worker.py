"""Runs a suite many times, each time in a fork of its own. Inside the sandbox: standard library only, Python >= 3.9.

    python3 -I -S -B -X utf8 worker.py < job

The job is one JSON object: `root` (the repository), `settings`, `runtime` (as for the grader's pytest_child.py, whose
collecting and judging this shares), `sources` (path -> text of the hidden Python files), `modules` (files of the
repository worth compiling once), `traced` (folders whose lines are recorded) and `runs`. Each run has `key`, `files`,
`tests` (ids, null: all), `replaced` (path -> text of a module that differs), `seconds` (of the processor),
`wall`, `trace` and `reverse`. For each run, one JSON line: see `_run`.

pytest is imported and the tests are compiled before the first fork, so that a run costs little more than its tests.
"""

import base64
import json
import os
import resource
import select
import shutil
import signal
import site
import sys
import time
import zlib
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from typing import Any, NoReturn

LINE_EVENTS = 4000
"""Lines of one function recorded in one test, repeats included; past that all of the function counts as run."""

_DETAIL = 400
_OUTPUT = 64 << 20


def main() -> None:
    """Serve one job."""
    report_fd = os.dup(1)
    os.dup2(2, 1)  # all else that is printed is no report
    job = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    judge = _load("pytest_child.py")["_status"]
    for name in [name for name in os.environ if name.startswith(("PYTEST", "PY_COLORS"))]:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    site.main()
    sys.path.append(job["runtime"])
    import importlib

    import _pytest.runner

    for name in _pytest.config.default_plugins:
        importlib.import_module(f"_pytest.{name}")
    codes = _compile(job["sources"], raising=True)
    codes.update(_compile({path: _text(path) for path in job["modules"]}, raising=False))
    for number, run in enumerate(job["runs"]):
        line = {"key": run["key"], **_run(number, run, job, codes, judge)}
        _write(report_fd, json.dumps(line).encode() + b"\n")
    os._exit(0)


def _run(number: int, run: "dict[str, Any]", job: "dict[str, Any]", codes: "dict[str, Any]", judge: Any) -> Any:
    """`ending` (`ended`, `hang`, `crash`), `code` of pytest, `tests` (rows of id, status, seconds, detail, line of the
    test file), `notes`, `seconds` of the processor before the first test, `modules`, and `lines` if traced.
    """
    told_read, told_write = os.pipe()
    scratch = f"/tmp/run{number}"
    child = os.fork()
    if child == 0:
        os.close(told_read)
        _child(run, job, codes, judge, told_write, scratch)
    os.close(told_write)
    deadline = time.monotonic() + run["wall"]
    text = bytearray()
    hang = False
    while True:
        ready = select.select([told_read], [], [], max(0.0, deadline - time.monotonic()))[0]
        if not ready or len(text) > _OUTPUT:
            hang = True
            break
        part = os.read(told_read, 1 << 18)
        if not part:
            break
        text += part
    os.close(told_read)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    shutil.rmtree(scratch, ignore_errors=True)
    hang = hang or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF)
    return _told(bytes(text), hang)


def _told(text: bytes, hang: bool) -> "dict[str, Any]":
    tests, notes = [], []
    end: dict[str, Any] = {}
    for line in text.splitlines():
        try:
            kind, value = json.loads(line)
        except ValueError:
            continue
        if kind == "test":
            tests.append(value)
        elif kind == "note":
            notes.append(value)
        elif kind == "end":
            end = value
    ending = "hang" if hang else "ended" if end else "crash"
    return {"ending": ending, "tests": tests, "notes": notes[:10], **end}


def _child(
    run: "dict[str, Any]", job: "dict[str, Any]", codes: "dict[str, Any]", judge: Any, told: int, scratch: str
) -> NoReturn:
    write, leave, encode = os.write, os._exit, json.dumps

    def tell(kind: str, value: Any) -> None:
        data = encode([kind, value]).encode() + b"\n"
        while data:
            data = data[write(told, data) :]

    try:
        os.setsid()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, run["seconds"])
        os.mkdir(scratch)
        os.environ["TMPDIR"] = scratch
        codes = {**codes, **_compile(run["replaced"], raising=True)}
        _serve(codes)
        sys.path.insert(0, job["root"])
        os.chdir(job["root"])
        tracer = Tracer([os.path.join(job["root"], name) for name in job["traced"]]) if run["trace"] else None
        tell("end", _pytest(run, job, judge, tell, tracer))
    except BaseException as error:
        tell("note", f"{type(error).__name__}: {str(error)[:_DETAIL]}")
    leave(0)


def _pytest(run: "dict[str, Any]", job: "dict[str, Any]", judge: Any, tell: Any, tracer: Any) -> "dict[str, Any]":
    import pytest
    from _pytest.runner import runtestprotocol

    wanted = None if run["tests"] is None else frozenset(run["tests"])
    facts: dict[str, Any] = {"seconds": 0.0}

    class Plugin:
        def __init__(self) -> None:
            self.failed_at: tuple[int, str] = (0, "")
            self.subtests: list[tuple[str, str]] = []

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, session: Any, config: Any, items: "list[Any]") -> None:
            if wanted is not None:
                items[:] = [item for item in items if item.nodeid in wanted]
            if run["reverse"]:
                items.reverse()
            facts["seconds"] = _processor_time()

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                tell("note", f"{report.nodeid}: {str(report.longrepr)[-_DETAIL:]}")

        def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
            if call.excinfo is not None and not self.failed_at[1]:
                own = [entry for entry in call.excinfo.traceback if str(entry.path) == str(item.path)]
                text = _exception(call.excinfo)
                values = _values(own[-1].frame.f_locals) if own and text.strip() == "AssertionError" else ""
                text = f"AssertionError with {values}" if values else text
                self.failed_at = (own[-1].lineno + 1 if own else 0, text)

        @pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest's own, as in the grader's child
        def pytest_runtest_logreport(self, report: Any) -> Any:
            if report.outcome != "passed":
                self.subtests.append((report.outcome, ""))
                report.outcome = "passed"
            return (yield)

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> bool:
            self.failed_at, self.subtests = (0, ""), []
            began = _processor_time()
            if tracer is not None:
                tracer.start()
            try:
                reports = runtestprotocol(item, nextitem=nextitem, log=False)
            finally:
                if tracer is not None:
                    tracer.stop(item.nodeid)
            status = judge(reports, self.subtests)[0]
            line, detail = self.failed_at
            tell("test", [item.nodeid, status, _processor_time() - began, detail, line])
            return True

    code = pytest.main(
        [
            *("-c", job["settings"], f"--rootdir={job['root']}", f"--confcutdir={job['root']}"),
            *("--assert=plain", "-p", "no:cacheprovider", "--continue-on-collection-errors"),
            *("-q", "--no-header", "--color=no", "--tb=native"),
            "--",
            *run["files"],
        ],
        plugins=[Plugin()],
    )
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    inside = sorted({file for file in files if isinstance(file, str) and file.startswith(job["root"] + "/")})
    lines = {} if tracer is None else {"lines": tracer.packed()}
    return {"code": int(code), "modules": inside, **facts, **lines}


class Tracer:
    """Which lines of the traced files each test runs, by test id and file, as bit masks in hexadecimal.

    A function is looked at until all of its lines were seen in the test; so a hot loop costs little.
    """

    def __init__(self, folders: "list[str]") -> None:
        self.folders = tuple(folders)
        self.known: dict[int, Any] = {}
        self.seen: dict[int, Any] = {}
        self.tests: dict[str, dict[str, str]] = {}

    def start(self) -> None:
        self.seen = {}
        sys.settrace(self._call)

    def stop(self, test_id: str) -> None:
        sys.settrace(None)
        masks: dict[str, int] = {}
        for key, (_, lines, left) in self.seen.items():
            file, every = self.known[key][1:]
            done = every if left[0] < 0 else lines
            mask = 0
            for line in done:
                mask |= 1 << line
            masks[file] = masks.get(file, 0) | mask
        self.tests[test_id] = {file: format(mask, "x") for file, mask in masks.items()}

    def packed(self) -> str:
        return base64.b64encode(zlib.compress(json.dumps(self.tests).encode(), 6)).decode()

    def _call(self, frame: Any, event: str, arg: Any) -> Any:
        code = frame.f_code
        key = id(code)
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = self._learn(code)
        if known[1] is None:
            return None
        state = self.seen.get(key)
        if state is None:
            state = self.seen[key] = self._watch(code, known[2])
        return None if state[2][0] <= 0 else state[0]

    def _learn(self, code: Any) -> "tuple[Any, str | None, set[int]]":
        file = code.co_filename
        if not file.startswith(self.folders) or code.co_name == "<module>":
            return code, None, set()
        lines = {line for _, _, line in code.co_lines() if line} | {code.co_firstlineno}
        return code, file, lines

    def _watch(self, code: Any, every: "set[int]") -> "tuple[Any, set[int], list[int]]":
        lines = {code.co_firstlineno}
        left = [LINE_EVENTS]

        def local(frame: Any, event: str, arg: Any) -> Any:
            if event == "line":
                lines.add(frame.f_lineno)
                left[0] -= 1
                if left[0] == 0:
                    left[0] = -1
                if len(lines) == len(every):
                    left[0] = 0
                if left[0] <= 0:
                    frame.f_trace_lines = False
            return local

        return local, lines, left


def _serve(codes: "dict[str, Any]") -> None:
    """Let imports take the code of the files of `codes` from there."""

    class Loader(SourceFileLoader):
        def get_code(self, fullname: str) -> Any:
            path = self.get_filename(fullname)
            return codes[path] if path in codes else super().get_code(fullname)

    sys.path_hooks.insert(0, FileFinder.path_hook((ExtensionFileLoader, EXTENSION_SUFFIXES), (Loader, [".py"])))
    sys.path_importer_cache.clear()


def _compile(sources: "dict[str, str]", raising: bool) -> "dict[str, Any]":
    """Code by path; of a text that is no Python code that says so when it runs, or none."""
    codes = {}
    for path, text in sources.items():
        try:
            codes[path] = compile(text, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError) as error:
            if raising:
                codes[path] = compile(f"raise SyntaxError({str(error)!r})", path, "exec", dont_inherit=True)
    return codes


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, ValueError):
        return "\0"  # compiles to nothing, so that the import reads the file itself


def _exception(excinfo: Any) -> str:
    try:
        return str(excinfo.exconly())[:_DETAIL]
    except BaseException:  # an exception's own methods may fail
        return "an exception that cannot be shown"


def _values(names: "dict[str, Any]") -> str:
    """The plain values among a test's variables, which a bare `assert` does not tell."""
    plain = (int, float, str, bool, type(None), list, tuple, dict, set)
    shown = []
    for name, value in names.items():
        if type(value) in plain and not name.startswith("_"):
            try:
                text = repr(value)
            except BaseException:  # what a container holds may fail
                continue
            if len(text) <= 80:
                shown.append(f"{name} = {text}")
    return ", ".join(shown)[:_DETAIL]


def _processor_time() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _load(name: str) -> "dict[str, Any]":
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    namespace: dict[str, Any] = {"__name__": "child", "__file__": file}
    with open(file, encoding="utf-8") as stream:
        exec(compile(stream.read(), file, "exec"), namespace)
    return namespace


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


if __name__ == "__main__":
    main()
