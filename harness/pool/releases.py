"""Finds releases of the package under test among a sandbox's installed packages: a later one holds the fix."""

import ast
import configparser
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

_NOT_CODE = frozenset({"test", "tests", "testing", "doc", "docs", "examples", "scripts", "tools", "build"})


def later_release_problems(snapshot: Path, site_dirs: Sequence[Path]) -> list[str]:
    """What in `site_dirs` (site-packages folders, wheel caches) lets an agent read another release of `snapshot`.

    An editable install is none: it leads back to the snapshot. An empty list means that nothing was found, by the
    names that pyproject.toml, setup.cfg or setup.py give and the packages that lie in the snapshot.
    """
    names = {_normal(name) for name in distribution_names(snapshot)}
    packages = set(_packages(snapshot))
    problems = []
    for folder in site_dirs:
        for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
            name, version = _release(entry)
            if name in names and not _is_editable(entry):
                problems.append(f"{entry} is release {version or '?'} of the package under test; uninstall it")
            elif entry.name in packages and entry.is_dir() and (entry / "__init__.py").is_file():
                problems.append(f"{entry} is a copy of package {entry.name}, which the snapshot holds; remove it")
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
    for node in ast.walk(ast.parse(text)):
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


def _release(entry: Path) -> tuple[str, str]:
    """(normalised name, version) of an installed distribution's record or an archive; empty strings if it is none."""
    match = re.fullmatch(r"(.+?)-(\d[^-]*)(-.*)?\.(dist-info|egg-info|egg|whl|tar\.gz|zip)", entry.name)
    if match:
        return _normal(match[1]), match[2]
    if entry.name.endswith((".egg-info", ".dist-info")):
        return _normal(entry.name.rsplit(".", 1)[0]), ""
    return "", ""


def _is_editable(record: Path) -> bool:
    file = record / "direct_url.json"
    try:
        return bool(json.loads(file.read_text())["dir_info"]["editable"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
