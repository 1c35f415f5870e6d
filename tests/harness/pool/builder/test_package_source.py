"""Where packages come from, and what of them an agent gets."""

import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from harness.pool.builder.layout import SETTINGS, solvable, take_apart
from harness.pool.builder.source import PackageSource, SourceError, SourceTree, _unpack, fetch
from harness.pool.builder.vendor import _own, _strip


def tree_of(folder, tmp_path):
    return fetch(PackageSource.folder(str(folder)), tmp_path / "cache")


def test_a_folder_is_read_anew_each_time(package, tmp_path):
    first = tree_of(package, tmp_path)
    assert (first.name, first.version) == ("mathy", "1.2")
    (package / "README.md").write_text("other\n")
    assert tree_of(package, tmp_path).digest != first.digest


def test_a_commit_is_taken_without_what_came_later(package, tmp_path):
    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, "-C", str(package), *words], check=True, capture_output=True)

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    (package / "later.py").write_text("x = 1\n")
    git("add", "-A")
    git("commit", "-qm", "two")
    tree = fetch(PackageSource.git(f"{package}@HEAD~1"), tmp_path / "cache")
    assert (tree.folder / "mathy/core.py").is_file()
    assert not (tree.folder / "later.py").exists() and not (tree.folder / ".git").exists()
    with pytest.raises(SourceError, match="has no commit"):
        PackageSource.git(f"{package}@nowhere")


@pytest.mark.parametrize("spec", ["mathy", "mathy>=1", "mathy==1; x", "--index-url==x"])
def test_a_package_names_its_version(spec):
    with pytest.raises(SourceError, match="no exact version"):
        PackageSource.package(spec)


def test_an_archive_cannot_write_elsewhere(tmp_path):
    (tmp_path / "evil").write_text("x")
    with tarfile.open(tmp_path / "p.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "evil", arcname="../evil2")
    (tmp_path / "work").mkdir()
    with pytest.raises(SourceError, match="cannot be unpacked"):
        _unpack(tmp_path / "p.tar.gz", tmp_path / "work" / "tree")
    assert not (tmp_path / "evil2").exists()


def test_tests_are_hidden_and_leftovers_left_out(package, tmp_path):
    layout = take_apart(tree_of(package, tmp_path), None, [], [])
    assert set(layout.files) == {"README.md", "pyproject.toml", "mathy/__init__.py", "mathy/core.py"}
    assert set(layout.hidden) == {SETTINGS, "tests/__init__.py", "tests/conftest.py", "tests/test_core.py"}
    assert layout.test_files == ("tests/test_core.py",) and layout.roots == ("mathy",)
    assert b"slow: is" in layout.hidden[SETTINGS]


def test_archives_stay_behind_but_for_those_of_the_tests(package, tmp_path):
    for path in ("examples/data.zip", "mathy/core.py.bak", "tests/data.zip"):
        (package / path).parent.mkdir(exist_ok=True)
        (package / path).write_bytes(b"PK")
    layout = take_apart(tree_of(package, tmp_path), None, [], [])
    assert not any(path.endswith((".zip", ".bak")) for path in layout.files)
    assert layout.hidden["tests/data.zip"] == b"PK"


def test_dependencies_and_src_come_onto_the_path(package, tmp_path):
    (package / "src").mkdir()
    (package / "mathy").rename(package / "src" / "mathy")
    vendor = tmp_path / "vendor"
    vendor.mkdir()
    (vendor / "dep.py").write_text("x = 1\n")
    layout = take_apart(tree_of(package, tmp_path), vendor, [], [])
    assert layout.paths == ("src", "vendor") and layout.vendored == ("vendor/dep.py",)
    assert b"pythonpath = src vendor" in layout.hidden[SETTINGS]
    assert not any(path.startswith("vendor/") for path in layout.sources)


def test_a_package_that_asks_for_its_version_finds_it(package, tmp_path):
    (package / "mathy/__init__.py").write_text("import importlib.metadata as m\nv = m.version('mathy')\n")
    layout = take_apart(tree_of(package, tmp_path), None, [], [])
    assert layout.files["vendor/mathy-1.2.dist-info/METADATA"].endswith(b"Version: 1.2\n")


def test_a_package_without_tests_is_refused(package, tmp_path):
    (package / "tests/test_core.py").unlink()
    with pytest.raises(SourceError, match="has no tests in it"):
        take_apart(tree_of(package, tmp_path), None, [], [])


def test_patterns_choose_files(package, tmp_path):
    tree = tree_of(package, tmp_path)
    assert list(take_apart(tree, None, ["README*"], ["mathy/core*"]).sources) == ["mathy/core.py"]
    with pytest.raises(SourceError, match="--only"):
        take_apart(tree, None, [], ["nowhere/*"])


def test_a_file_that_no_patch_may_change_gets_no_bug(tmp_path):
    assert solvable({"a.py": "", "setup.cfg": "", "packaging/x.py": ""}, tmp_path, []) == {"a.py": ""}


def test_requirements_are_its_own_without_extras():
    tree = SourceTree(Path("."), "m", "1", "d", "o", ("six>=1.5", "x; extra == 'dev'", 'y>2; python_version < "3"'))
    assert _own(tree) == ["six>=1.5"]
    with pytest.raises(SourceError, match="cannot be read"):
        _own(replace(tree, requires=("what is this?",)))


def test_dependencies_are_kept_as_plain_python_without_the_graders(tmp_path):
    files = {
        **{"dep/__init__.py": "", "dep/fast.so": "", "dep/__pycache__/a.pyc": "", "bin/dep": ""},
        **{
            "dep-2.0.dist-info/METADATA": "Name: dep\nVersion: 2.0\n",
            "dep-2.0.dist-info/RECORD": "dep/__init__.py,,\n",
        },
        **{"pluggy/__init__.py": "", "pluggy-1.0.dist-info/METADATA": "Name: pluggy\nVersion: 1.0\n"},
        "pluggy-1.0.dist-info/RECORD": "pluggy/__init__.py,,\npluggy-1.0.dist-info/METADATA,,\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert _strip(tmp_path) == ["dep==2.0"]
    left = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file()}
    assert left == {"dep/__init__.py", "dep-2.0.dist-info/METADATA"}
