"""A package's dependencies, copied into its snapshot: graders and sandboxes know nothing of virtual environments.

The tests' own dependencies come along. pytest does not: the grader brings it.
"""

import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from harness.pool.builder.source import SourceError, SourceTree

VENDOR = "vendor"
"""Folder of the snapshot with the dependencies, one of those that the tests' settings put on sys.path."""

PINS = "pins.json"
_OF_THE_GRADER = {"pytest", "pluggy", "iniconfig", "packaging", "pygments"}
_KEPT = {"METADATA", "entry_points.txt", "top_level.txt"}
_COMPILED = (".so", ".pyd", ".dylib")
_SECONDS = 600


def vendor(tree: SourceTree, extra: Sequence[str], cache: Path) -> tuple[Path | None, list[str]]:
    """A folder with the dependencies of `tree` and the requirements `extra`, and their pins; None if it needs none.

    Resolved by pip once; the same folder serves as long as the requirements are the same.

    Raises:
        SourceError: pip cannot find them as wheels, or a requirement cannot be read.
    """
    wanted = sorted({*_own(tree), *extra})
    if not wanted:
        return None, []
    target = cache / f"{tree.name}-{tree.version}"
    if target.is_dir():
        stored = json.loads((target / PINS).read_text(encoding="utf-8"))
        if stored["wanted"] == wanted:
            return target / VENDOR, list(stored["pins"])
        shutil.rmtree(target)
    cache.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".new.", dir=cache))
    try:
        place = partial / VENDOR
        _install(tree, wanted, place)
        pins = _strip(place)
        (partial / PINS).write_text(json.dumps({"wanted": wanted, "pins": pins}), encoding="utf-8")
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target / VENDOR, pins


def _own(tree: SourceTree) -> list[str]:
    try:
        parsed = [Requirement(text) for text in tree.requires]
    except InvalidRequirement as error:
        raise SourceError(f"{tree.name}: a requirement cannot be read: {error}") from error
    needed = [one for one in parsed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return [f"{one.name}{one.specifier}" for one in needed]


def _install(tree: SourceTree, wanted: Sequence[str], place: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--only-binary", ":all:", "--target", str(place), *wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"{tree.name}: pip did not end within {_SECONDS} s; check the network") from error
    if done.returncode != 0:
        raise SourceError(f"{tree.name}: its dependencies {list(wanted)} cannot be had: {done.stderr.strip()[-500:]}")


def _strip(place: Path) -> list[str]:
    """Keep pure Python and what metadata says of it; returns the pins.

    A compiled module would bind the snapshot to one Python; the packages that have a plain one beside it fall back.
    """
    pins = []
    for distribution in list(importlib.metadata.distributions(path=[str(place)])):
        name = distribution.metadata["Name"]
        if name.lower() in _OF_THE_GRADER:
            tops = {Path(str(file)).parts[0] for file in distribution.files or ()}
            for top in tops - {"..", "."}:
                _remove(place / top)
        else:
            pins.append(f"{name}=={distribution.version}")
    for file in sorted(place.rglob("*"), reverse=True):
        in_metadata = file.parent.name.endswith(".dist-info")
        if file.name in ("__pycache__", "bin") and file.is_dir():
            _remove(file)
        elif file.is_file() and (file.suffix in _COMPILED or (in_metadata and file.name not in _KEPT)):
            file.unlink()
    return sorted(pins)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
