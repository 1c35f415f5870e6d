"""A small package with tests, of which some cannot be relied on."""

from pathlib import Path

import pytest

FILES = {
    "pyproject.toml": '[project]\nname = "mathy"\nversion = "1.2"\n[tool.pytest.ini_options]\nmarkers = ["slow: is"]\n',
    "README.md": "mathy\n",
    "mathy/__init__.py": "from mathy.core import Box, clamp, total\n",
    "mathy/core.py": '''"""Sums and bounds."""


def clamp(value, low=0, high=10):
    if value < low:
        return low
    if value > high:
        return high
    return value


def total(values):
    result = 0
    for value in values:
        result += value
    return result


def unused(value):
    return value + 1


class Box:
    def __init__(self, value):
        self.value = value

    def double(self):
        return self.value * 2
''',
    "mathy/core.py.orig": "old\n",
    "build/lib/mathy/core.py": "copy\n",
    "tests/__init__.py": "",
    "tests/conftest.py": "def pytest_ignore_collect(path, config):\n    return path.basename == 'old.py'\n",
    "tests/test_core.py": '''import unittest

import pytest

from mathy import Box, clamp, total

state = []


@pytest.mark.parametrize("value,expected", [(-1, 0), (5, 5), (11, 10)])
def test_clamp(value, expected):
    """Values end up within their bounds."""
    assert clamp(value) == expected


def test_total():
    assert total([1, 2, 3]) == 6


class TestBox:
    def test_double(self):
        """A box knows twice its value."""
        assert Box(4).double() == 8


class TestParts(unittest.TestCase):
    def test_parts(self):
        for value in (1, 2):
            with self.subTest(value):
                assert total([value]) == value


def test_wrong():
    assert total([1]) == 2


def test_skipped():
    pytest.skip("not here")


def test_first_of_two():
    assert not state
    state.append(1)


def test_second_of_two():
    state.append(1)
    assert len(state) == 2
''',
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package's folder."""
    folder = tmp_path / "mathy"
    for path, text in FILES.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    tmp_path.chmod(0o755)
    return folder
