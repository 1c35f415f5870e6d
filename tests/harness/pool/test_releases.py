"""Installed releases of the package under test are found by every name that it goes by."""

import json
from pathlib import Path

import pytest

from harness.pool.releases import distribution_names, later_release_problems


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
    (problem,) = later_release_problems(snapshot, [tmp_path / "none", site])
    assert str(site / entry.split("/")[0]) in problem


def test_editable_installs_and_other_packages_are_none(snapshot: Path, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    for name in ("snake_lib-1.0.dist-info", "snake_lib_extras-1.0.dist-info", "tests", "other"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("")
    record = {"url": "file:///workspace", "dir_info": {"editable": True}}
    (site / "snake_lib-1.0.dist-info" / "direct_url.json").write_text(json.dumps(record))
    assert later_release_problems(snapshot, [site]) == []
