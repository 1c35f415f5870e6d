"""Interpreters that are copied for agents, and what is pinned."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.scaffolds import python_runtime as module
from harness.scaffolds.mini import RUNTIME as MINI
from harness.scaffolds.openhands import RUNTIME as OPENHANDS
from harness.scaffolds.python_runtime import (
    copy_interpreter,
    copy_libraries,
    find_interpreter,
    python_environment,
    python_start,
)
from harness.scaffolds.runtimes import RuntimeBuildError


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """A copied interpreter that was moved afterwards."""
    built = tmp_path_factory.mktemp("built") / "runtime"
    built.mkdir()
    copy_interpreter(find_interpreter((3, 11)), built)
    (built / "site").mkdir()
    (built / "site" / "the_agent.py").write_text("NAME = 'agent'\n")
    return built.rename(tmp_path_factory.mktemp("elsewhere") / "moved")


def test_a_moved_interpreter_is_whole_and_its_own(moved, tmp_path):
    program = """\
import json, hashlib, sqlite3, ssl, zlib, ctypes, subprocess, the_agent
inner = subprocess.run(["/bin/sh", "-c", "echo $LD_LIBRARY_PATH$PYTHONPATH"], capture_output=True, text=True).stdout
print(json.dumps([sys.prefix, sys.path, inner.strip(), the_agent.NAME, sys.argv[1:], sys.version_info[:2]]))
"""
    (tmp_path / "json.py").write_text("raise SystemExit('the repository was imported')\n")
    done = subprocess.run(
        python_start(moved, program, ["a b"]),
        env=python_environment(moved) | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    prefix, path, inherited, name, arguments, version = json.loads(done.stdout)
    assert (prefix, inherited, name, arguments) == (str(moved), str(tmp_path), "agent", ["a b"])
    assert all(Path(entry).is_relative_to(moved) for entry in path)
    assert tuple(version) == find_interpreter((3, 11)).version


def test_the_c_library_is_left_to_the_image(moved):
    names = [path.name for path in (moved / "native").iterdir()]
    assert any(name.startswith("libssl") for name in names)
    assert not any(re.match(r"lib(c|m|pthread)\.so|ld-linux", name) for name in names)
    assert not list(moved.rglob("site-packages")) and not list(moved.rglob("*.a"))


def test_missing_libraries_are_named(tmp_path, monkeypatch):
    listing = "\tlibevent.so.7 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x0)\n"
    monkeypatch.setattr(module, "_run", lambda *_: listing)
    with pytest.raises(RuntimeBuildError, match=r"libevent\.so\.7.*install"):
        copy_libraries([tmp_path / "tmux"], tmp_path / "native")


def test_the_running_interpreter_is_taken_if_it_is_new_enough():
    found = find_interpreter(sys.version_info[:2])
    assert found.version == sys.version_info[:2] and found.prefix == Path(sys.base_prefix)
    assert found.program.exists() and (found.stdlib / "os.py").exists()


def test_without_a_new_enough_interpreter_the_mend_is_named(monkeypatch):
    monkeypatch.setattr(module, "_of_pyenv", lambda names: [])
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with pytest.raises(RuntimeBuildError, match=r"needs Python >= 3\.99; install python3\.99"):
        find_interpreter((3, 99))


@pytest.mark.parametrize("runtime", [MINI, OPENHANDS])
def test_every_package_is_pinned_and_the_agent_among_them(runtime):
    python, *pins = runtime.packages
    assert python == f"python>={'.'.join(map(str, runtime.oldest))}"
    assert all(re.fullmatch(r"[A-Za-z0-9.\-]+==[A-Za-z0-9.]+", pin) for pin in pins)
    assert f"{runtime.package}=={runtime.version}" in pins
