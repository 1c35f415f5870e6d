"""Installed releases of the package under test are found by every name that it goes by."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.pool.releases import LOOK, Installed, distribution_names, installed, later_release_problems


def look(*folders: Path) -> list[Installed]:
    """What a Python finds in `folders`."""
    words = [sys.executable, "-I", "-c", LOOK, *map(str, folders)]
    version, found = installed(subprocess.run(words, check=True, capture_output=True).stdout)
    assert version == sys.version_info[:2]
    return found


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "src" / "snake_lib").mkdir(parents=True)
    (root / "src" / "snake_lib" / "__init__.py").write_text("")
    (root / "tests").mkdir()
    (root / "tests" / "__init__.py").write_text("")
    (root / "pyproject.toml").write_text('[project]\nname = "Snake.Lib"\n')
    return root


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", '[project]\nname = "x"\n'),
        ("pyproject.toml", '[tool.poetry]\nname = "x"\n'),
        ("setup.cfg", "[metadata]\nname = x\n"),
        ("setup.py", "import setuptools\nsetuptools.setup(version=1, name='x')\n"),
    ],
)
def test_names_are_read_without_running_anything(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    assert distribution_names(tmp_path) == {"x"}
    (tmp_path / file).write_text("[[[ (")
    assert distribution_names(tmp_path) == set()


@pytest.mark.parametrize(
    "entry",
    [
        *("snake_lib-2.0.dist-info/METADATA", "Snake.Lib-2.0-py3.11.egg-info/PKG-INFO", "snake_lib.egg-info/PKG-INFO"),
        *("snake_lib/__init__.py", "snake_lib-2.0-py3-none-any.whl", "snake-lib-2.0.tar.gz"),
    ],
)
def test_a_release_beside_the_snapshot_is_a_problem(snapshot: Path, tmp_path: Path, entry: str) -> None:
    site = tmp_path / "site-packages"
    (site / entry).parent.mkdir(parents=True)
    (site / entry).write_text("")
    (problem,) = later_release_problems(snapshot, look(tmp_path / "none", site))
    assert str(site / entry.split("/")[0]) in problem


def test_editable_installs_and_other_packages_are_none(snapshot: Path, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    for name in ("snake_lib-1.0.dist-info", "snake_lib_extras-1.0.dist-info", "tests", "other"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("")
    record = {"url": "file:///workspace", "dir_info": {"editable": True}}
    (site / "snake_lib-1.0.dist-info" / "direct_url.json").write_text(json.dumps(record))
    assert later_release_problems(snapshot, look(site)) == []


def test_without_folders_the_pythons_own_packages_are_found() -> None:
    assert {"pytest"} <= {entry.name for entry in look() if entry.package}
    with pytest.raises(ValueError, match="no list"):
        installed(b"7")
