"""What of a package an agent gets, what is hidden from it, and what is left out of both.

All tests are hidden, with what lies beside them: a visible test of the clean package would say what the bug is.
"""

import configparser
import fnmatch
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.patch import drop_reason
from harness.pool.builder.source import SourceError, SourceTree, regular_files
from harness.pool.builder.vendor import VENDOR

SETTINGS = "pytest.ini"

_TEST_FOLDERS = {"tests", "test"}
_TEST_FILE = re.compile(r"(test_.*|.*_test|tests|conftest)\.py")
_NOT_SOURCES = {"setup.py", "noxfile.py", "tasks.py", "fabfile.py", "conftest.py", "versioneer.py"}
_NOT_SOURCE_FOLDERS = {
    *("doc", "docs", "example", "examples", "bench", "benchmark", "benchmarks", "scripts", "script", "tools", "ci"),
    *("build", "dist", "requirements", "samples", "demo", "utils_dev", "misc"),
}
LEFTOVERS = (".pyc", ".pyo", ".orig", ".rej", ".bak", ".swp", ".whl", ".egg", ".tar.gz", ".tgz", ".zip", "~")
"""Ends of the names of files that may hold the clean text: an agent gets none of them."""

_LEFT_OUT = (
    *("build/*", "dist/*", "*.egg-info/*", ".github/*", "PKG-INFO", "*.pyc", "*.pyo", "*.orig", "*.rej", "*.bak", "*~"),
    *("*.whl", "*.egg", "*.tar", "*.tar.gz", "*.tgz", "*.tar.bz2", "*.tar.xz", "*.so", "*.pyd", ".coverage", "*.pth"),
)
_LARGEST = 1 << 20
_DEFAULT_PATTERNS = ("test_*.py", "*_test.py")
_KEPT_SETTINGS = ("python_files", "python_classes", "python_functions", "markers", "xfail_strict")
_OLD_HOOK = re.compile(rb"def\s+pytest_\w+\([^)]*\b(path|startdir)\b")
_OLD_HOOKS_WORK = "ignore:The .(path|startdir)"
"""Pytest 9 ends at the warning that a conftest asks for `path`, which it still gives: a filter by its text."""


@dataclass(frozen=True)
class Layout:
    """A package taken apart; all paths are relative to its top.

    `files` are what an agent gets, `hidden` tests and what lies beside them, `test_files` those of them that pytest
    collects, `sources` the Python files that may get a bug, `paths` the folders that must be on sys.path.
    """

    files: Mapping[str, bytes]
    hidden: Mapping[str, bytes]
    test_files: tuple[str, ...]
    sources: Mapping[str, str]
    paths: tuple[str, ...]
    vendored: tuple[str, ...]

    @property
    def roots(self) -> tuple[str, ...]:
        """Folders that hold the package's own code, for a tracer."""
        return tuple(sorted({PurePosixPath(path).parts[0] for path in self.sources}))


def take_apart(tree: SourceTree, vendor: Path | None, exclude: Sequence[str], only: Sequence[str]) -> Layout:
    """Sort the files of a package.

    Raises:
        SourceError: it has no tests, or no Python files beside them.
    """
    everything = {path: file for path, file in regular_files(tree.folder) if not _left_out(path, file, exclude)}
    files = {
        path: file.read_bytes()
        for path, file in everything.items()
        if not _is_test(path) and not path.endswith(LEFTOVERS)
    }
    hidden = {path: file.read_bytes() for path, file in everything.items() if _is_test(path)}
    hidden = {path: data for path, data in hidden.items() if not path.endswith(".py") or _is_text(data)}
    settings = _settings(files)
    patterns = settings.get("python_files", "").split() or list(_DEFAULT_PATTERNS)
    test_files = tuple(path for path in hidden if _collected(path, patterns))
    if not test_files:
        raise SourceError(f"{tree.name} {tree.version} has no tests in it; take a git checkout, if that has them")
    paths = ["src"] if any(path.startswith("src/") and path.endswith(".py") for path in files) else []
    vendored = {f"{VENDOR}/{path}": file.read_bytes() for path, file in regular_files(vendor)} if vendor else {}
    if any(b"importlib" in data and b"metadata" in data for path, data in files.items() if path.endswith(".py")):
        # Code that asks for its own version must find an answer.
        about = f"Metadata-Version: 2.1\nName: {tree.name}\nVersion: {tree.version}\n".encode()
        vendored[f"{VENDOR}/{tree.name.replace('-', '_')}-{tree.version}.dist-info/METADATA"] = about
    paths += [VENDOR] if vendored else []
    if paths:
        settings["pythonpath"] = " ".join(paths)
    if any(path.endswith("conftest.py") and _OLD_HOOK.search(data) for path, data in hidden.items()):
        settings["filterwarnings"] = _OLD_HOOKS_WORK
    hidden[SETTINGS] = _ini(settings)
    sources = {
        path: data.decode("utf-8")
        for path, data in files.items()
        if _is_source(path) and _is_text(data) and (not only or any(fnmatch.fnmatch(path, p) for p in only))
    }
    if not sources:
        raise SourceError(f"{tree.name} {tree.version} has no Python files to put a bug into; correct --only")
    return Layout(files | vendored, hidden, test_files, sources, tuple(paths), tuple(sorted(vendored)))


def solvable(sources: Mapping[str, str], snapshot: Path, protected: Sequence[str]) -> dict[str, str]:
    """The sources that a patch may change: a bug in any other could not be mended."""
    return {path: text for path, text in sources.items() if not drop_reason(path, snapshot, protected)}


def _left_out(path: str, file: Path, exclude: Sequence[str]) -> bool:
    patterns = (*_LEFT_OUT, *exclude)
    if any(fnmatch.fnmatch(path, p) or fnmatch.fnmatch(path.partition("/")[2], p) for p in patterns):
        return True
    return file.stat().st_size > _LARGEST and not path.endswith(".py")


def _is_test(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return not _TEST_FOLDERS.isdisjoint(parts[:-1]) or _TEST_FILE.fullmatch(parts[-1]) is not None


def _collected(path: str, patterns: Sequence[str]) -> bool:
    name = PurePosixPath(path).name
    return name.endswith(".py") and any(fnmatch.fnmatch(name, p) or fnmatch.fnmatch(path, p) for p in patterns)


def _is_source(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return path.endswith(".py") and parts[-1] not in _NOT_SOURCES and parts[0] not in _NOT_SOURCE_FOLDERS


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode("utf-8") and not data.startswith(b"\xef\xbb\xbf")
    except UnicodeDecodeError:
        return False


def _settings(files: Mapping[str, bytes]) -> dict[str, str]:
    """Which tests the project collects and how it marks them, by its own settings of pytest."""
    for name, section in (("pytest.ini", "pytest"), ("tox.ini", "pytest"), ("setup.cfg", "tool:pytest")):
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            parser.read_string(files.get(name, b"").decode("utf-8"))
        except (configparser.Error, UnicodeDecodeError):
            continue
        if parser.has_section(section):
            return {key: parser[section][key] for key in _KEPT_SETTINGS if key in parser[section]}
    try:
        tool = tomllib.loads(files.get("pyproject.toml", b"").decode("utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return {}
    found = tool.get("pytest", {}).get("ini_options", {})
    return {
        key: "\n".join(map(str, value))
        if isinstance(value, list)
        else str(value).lower()
        if value is True
        else str(value)
        for key, value in found.items()
        if key in _KEPT_SETTINGS
    }


def _ini(settings: Mapping[str, str]) -> bytes:
    lines = [f"{key} = {value}".replace("\n", "\n    ") for key, value in settings.items()]
    return "\n".join(["[pytest]", *lines, ""]).encode()
