"""What the runner's child does for unittest tests. Standard library only, Python >= 3.9.

Of the job it reads `tests` ([[id, module, class, method], ...]), `sources` (module -> text of the hidden tests),
`tests_dir` (folder of their data) and `path` (folders that go before the standard library on sys.path).
"""

import importlib
import importlib.util
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any

Tell = Callable[[str, str, str, str], None]

_PACKAGE = "hidden_tests"


def run_tests(job: dict[str, Any], tell: Tell, describe: Callable[[BaseException], str]) -> int:
    """Load and run the tests, telling each status; 0 if the run as a whole went well."""
    package = types.ModuleType(_PACKAGE)  # a package of its own: no folder of the repository can stand in for it
    package.__path__ = [job["tests_dir"]]
    sys.modules[_PACKAGE] = package
    sys.path[:0] = job["path"]
    sys.meta_path.insert(0, _Hidden(job.pop("sources"), job["tests_dir"]))
    known: dict[int, str] = {}
    alive: list[Any] = []  # else a test's id() could be taken over by another object
    failures: list[str] = []

    class Result(unittest.TestResult):
        def addSuccess(self, test: Any) -> None:
            self._tell(test, "passed", "")

        def addFailure(self, test: Any, err: Any) -> None:
            self._tell(test, "failed", describe(err[1]))

        def addError(self, test: Any, err: Any) -> None:
            self._tell(test, "error", describe(err[1]))

        def addSkip(self, test: Any, reason: str) -> None:
            self._tell(test, "skipped", str(reason))

        def addExpectedFailure(self, test: Any, err: Any) -> None:
            self._tell(test, "expected_failure", "")

        def addUnexpectedSuccess(self, test: Any) -> None:
            self._tell(test, "unexpected_success", "")

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            if err is not None and id(test) not in self.told:
                self._tell(test, "failed" if issubclass(err[0], test.failureException) else "error", describe(err[1]))

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
            tell("note", test_id, "", describe(error))
            continue
        known[id(test)] = test_id
        alive.append(test)
        suite.addTest(test)
    suite.run(Result())
    return 1 if failures else 0


class _Hidden:
    """Finds and loads the hidden tests, as modules of the package and, for each other's imports, by their own names.

    They are compiled before the code under test is imported, and of their text nothing stays in memory.
    """

    def __init__(self, sources: "dict[str, str]", folder: str) -> None:
        self._files = {module: f"{folder}/{module.replace('.', '/')}.py" for module in sources}
        self._codes: dict[str, Any] = {}
        self._errors: dict[str, BaseException] = {}
        for module, file in self._files.items():
            try:
                self._codes[module] = compile(sources.pop(module), file, "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                self._errors[module] = type(error)(str(error))
        self._make_spec = importlib.util.spec_from_file_location  # an import from find_spec would come back to it

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        module = name[len(_PACKAGE) + 1 :] if name.startswith(_PACKAGE + ".") else name
        if module not in self._files:
            return None
        spec = self._make_spec(name, self._files[module], loader=self)  # type: ignore[arg-type]
        spec.loader_state = module  # type: ignore[union-attr]
        return spec

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        name = module.__spec__.loader_state
        if name in self._errors:
            raise self._errors[name]
        exec(self._codes[name], module.__dict__)
