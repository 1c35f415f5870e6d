"""What the runner's child does for pytest tests. Python >= 3.9, and a pytest: its own, else the archive `runtime`.

Of the job it reads `tests` (ids), `files` (paths to collect), `sources` (path -> text of the hidden Python files),
`root` (the repository), `settings` (the one ini file that counts), `plugins` (modules) and `runtime`.

All of pytest is imported while the repository, which may be installed in place, is not on sys.path. Each test goes
through pytest's own protocol, but its status is told for the item that was collected, whatever the code under test
makes of reports and names.
"""

import importlib
import os
import sys
from collections.abc import Callable
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from typing import Any

Tell = Callable[[str, str, str, str], None]


def run_tests(job: dict[str, Any], tell: Tell, describe: Callable[[BaseException], str]) -> int:
    """Collect and run the tests, telling each status; 0 if the run as a whole went well."""
    for name in [name for name in os.environ if name.startswith(("PYTEST", "PY_COLORS"))]:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    in_place = [place for place in sys.path if f"{place}/".startswith(f"{job['root']}/")]
    sys.path[:] = [*(place for place in sys.path if place not in in_place), job["runtime"]]
    import _pytest.runner
    import pytest

    for name in _pytest.config.default_plugins:
        importlib.import_module(f"_pytest.{name}")
    for name in job["plugins"]:
        importlib.import_module(name)
    _serve(job.pop("sources"))
    sys.path[:] = [job["root"], *sys.path, *in_place]
    os.chdir(job["root"])
    plugin = _make_plugin(frozenset(job["tests"]), tell, describe, pytest, _pytest.runner.runtestprotocol)
    code = pytest.main(
        [
            *("-c", job["settings"], f"--rootdir={job['root']}", f"--confcutdir={job['root']}"),
            *("--assert=plain", "-p", "no:cacheprovider", "--continue-on-collection-errors"),
            *("-q", "--color=no", "--tb=native"),  # options of old releases as well: an image has its own
            *(word for name in job["plugins"] for word in ("-p", name)),
            "--",
            *job["files"],
        ],
        plugins=[plugin],
    )
    if code != 0:
        tell("note", "pytest", "", f"ended with code {int(code)}")
    return 0 if code == 0 and not plugin.failures else 1


def _make_plugin(
    wanted: "frozenset[str]", tell: Tell, describe: Callable[[BaseException], str], pytest: Any, protocol: Any
) -> Any:
    class Plugin:
        def __init__(self) -> None:
            self.failures = 0
            self.ids: dict[int, str] = {}
            self.subtests: list[tuple[str, str]] = []

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, session: Any, config: Any, items: "list[Any]") -> None:
            chosen = [item for item in items if item.nodeid in wanted]
            others = [item for item in items if item.nodeid not in wanted]
            config.hook.pytest_deselected(items=others)
            items[:] = chosen
            self.ids = {id(item): item.nodeid for item in chosen}
            for name in sorted(wanted.difference(self.ids.values())):
                self._fail(name, "there is no such test")

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                self._fail(str(report.nodeid), str(report.longrepr)[-500:])

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> bool:
            name = self.ids[id(item)]
            self.subtests = []
            reports = protocol(item, nextitem=nextitem, log=False)
            status, detail = _status(reports, self.subtests)
            tell("test", name, status, detail)
            return True

        # Before pytest's own, which come first otherwise; in the old form of a wrapper, which every pluggy knows.
        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_logreport(self, report: Any) -> Any:
            # Tests are run unlogged; what is logged all the same are their subtests. Pytest itself must not count them:
            # its exit code tells of faults of the run, and sentinels' subtests are to fail.
            if report.outcome != "passed":
                self.subtests.append((report.outcome, _text(report)))
                report.outcome = "passed"
            yield

        def _fail(self, name: str, detail: str) -> None:
            self.failures += 1
            tell("note", name, "", detail)

    return Plugin()


def _status(reports: "list[Any]", subtests: "list[tuple[str, str]]") -> "tuple[str, str]":
    """A test's status from the reports of its set-up, call and tear-down. Only three plain passes are a pass.

    A test is itself reported as passed when `subtests` of it, of which those are here that did not pass, have failed.
    """
    if subtests:
        return min(subtests)  # failed before skipped
    if [(report.when, report.outcome) for report in reports] == [
        (when, "passed") for when in ("setup", "call", "teardown")
    ]:
        return ("xpassed", "") if any(hasattr(report, "wasxfail") for report in reports) else ("passed", "")
    for report in reports:
        if report.outcome != "passed":
            if hasattr(report, "wasxfail"):
                return "xfailed", ""
            if report.outcome == "skipped":
                return "skipped", _text(report)
            return ("failed" if report.when == "call" else "error"), _text(report)
    return "error", "its protocol did not come to its end"


def _text(report: Any) -> str:
    try:
        return str(report.longrepr)[-500:]
    except BaseException:  # an exception's own methods may be hostile
        return "a failure that cannot be shown"


def _serve(sources: "dict[str, str]") -> None:
    """Let imports find the hidden files' code, which the empty files of the same names do not hold.

    It is compiled before the code under test is imported, and of its text nothing stays in memory.
    """
    codes: dict[str, Any] = {}
    while sources:
        path, text = sources.popitem()
        try:
            codes[path] = compile(text, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            codes[path] = compile(f"raise SyntaxError({str(error)!r})", path, "exec", dont_inherit=True)

    class Loader(SourceFileLoader):
        def get_code(self, fullname: str) -> Any:
            path = self.get_filename(fullname)
            return codes[path] if path in codes else super().get_code(fullname)

    kinds: list[Any] = [
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (Loader, [".py"]),
        (SourcelessFileLoader, [".pyc"]),
    ]
    sys.path_hooks.insert(0, FileFinder.path_hook(*kinds))
    sys.path_importer_cache.clear()
