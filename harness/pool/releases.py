"""Finds releases of the package under test among a sandbox's installed packages: a later one holds the fix."""

import ast
import configparser
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from harness import syntax

_NOT_CODE = frozenset({"test", "tests", "testing", "doc", "docs", "examples", "scripts", "tools", "build"})


LOOK = """\
import json, os, site, sys
found = []
for folder in sys.argv[1:] or site.getsitepackages():
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        try:
            with open(os.path.join(path, "direct_url.json")) as stream:
                editable = bool(json.load(stream)["dir_info"]["editable"])
        except (OSError, ValueError, KeyError, TypeError):
            editable = False
        found.append([folder, name, os.path.isfile(os.path.join(path, "__init__.py")), editable])
print(json.dumps([sys.version_info[:2], found]))
"""
"""For the Python that is asked about, of any version 3; its arguments are folders in place of its site-packages."""


class Installed(NamedTuple):
    """An entry of a folder of installed packages: whether it is a package, and the record of an editable install."""

    folder: str
    name: str
    package: bool
    editable: bool


def installed(output: bytes) -> tuple[tuple[int, int], list[Installed]]:
    """What `LOOK` printed: the Python's version, and what is installed for it.

    Raises:
        ValueError: it printed something else.
    """
    try:
        (major, minor), entries = json.loads(output)
        return (int(major), int(minor)), [Installed(str(a), str(b), bool(c), bool(d)) for a, b, c, d in entries]
    except (TypeError, ValueError) as error:
        raise ValueError(f"no list of installed packages: {output[:200]!r}") from error


def later_release_problems(snapshot: Path, entries: Iterable[Installed]) -> list[str]:
    """What among `entries` (of site-packages, wheel caches) lets an agent read another release of `snapshot`.

    An editable install is none: it leads back to the snapshot. An empty list means that nothing was found, by the
    names that pyproject.toml, setup.cfg or setup.py give and the packages that lie in the snapshot.
    """
    names = {_normal(name) for name in distribution_names(snapshot)}
    packages = set(_packages(snapshot))
    problems = []
    for entry in entries:
        name, version = _release(entry.name)
        path = f"{entry.folder}/{entry.name}"
        if name in names and not entry.editable:
            problems.append(f"{path} is release {version or '?'} of the package under test; uninstall it")
        elif entry.package and entry.name in packages:
            problems.append(f"{path} is a copy of package {entry.name}, which the snapshot holds; remove it")
    return problems


def distribution_names(snapshot: Path) -> set[str]:
    """What the snapshot's project calls itself, where it says so without being run."""
    found: set[str] = set()
    for file, read in (("pyproject.toml", _from_pyproject), ("setup.cfg", _from_setup_cfg), ("setup.py", _from_setup)):
        if (snapshot / file).is_file():
            try:
                found |= set(read((snapshot / file).read_text(encoding="utf-8")))
            except (ValueError, SyntaxError, configparser.Error):  # the project's own file, which may be the bug
                continue
    return found


def _from_pyproject(text: str) -> Iterator[str]:
    config = tomllib.loads(text)
    for table in (config.get("project"), config.get("tool", {}).get("poetry")):
        if isinstance(table, dict) and isinstance(table.get("name"), str):
            yield table["name"]


def _from_setup_cfg(text: str) -> Iterator[str]:
    config = configparser.ConfigParser(interpolation=None, strict=False)
    config.read_string(text)
    if config.has_option("metadata", "name"):
        yield config.get("metadata", "name")


def _from_setup(text: str) -> Iterator[str]:
    for node in ast.walk(syntax.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setup"):
            for keyword in node.keywords:
                value = keyword.value
                if keyword.arg == "name" and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def _packages(snapshot: Path) -> Iterator[str]:
    for folder in (snapshot, snapshot / "src", snapshot / "lib"):
        for entry in folder.iterdir() if folder.is_dir() else []:
            if (entry / "__init__.py").is_file() and entry.name not in _NOT_CODE:
                yield entry.name


def _release(entry: str) -> tuple[str, str]:
    """(normalised name, version) of an installed distribution's record or an archive; empty strings if it is none."""
    match = re.fullmatch(r"(.+?)-(\d[^-]*)(-.*)?\.(dist-info|egg-info|egg|whl|tar\.gz|zip)", entry)
    if match:
        return _normal(match[1]), match[2]
    if entry.endswith((".egg-info", ".dist-info")):
        return _normal(entry.rsplit(".", 1)[0]), ""
    return "", ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
