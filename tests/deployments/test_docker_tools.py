"""The engine and the base image that tests and beginners start with."""

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.docker import daemon

RUN = [sys.executable, "-m", "deployments.docker.daemon"]
ROOT = Path(__file__).parents[2]


needs_dockerd = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("dockerd") is None, reason="starting an engine needs root and dockerd"
)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the engine's sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def run(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*RUN, *command], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


def test_usage_is_told() -> None:
    done = run()
    assert done.returncode == 2 and "COMMAND" in done.stderr


def test_without_root_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(daemon.DaemonError, match="only root"):
        daemon.find_dockerd(install=True)


def test_a_missing_dockerd_is_not_installed_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(daemon.DaemonError, match="not installed"):
        daemon.find_dockerd(install=False)


@pytest.mark.docker
@needs_dockerd
def test_an_engine_lives_as_long_as_its_command(short_folder: Path) -> None:
    nowhere = f"unix://{short_folder}/none.sock"
    here = "import os; from deployments.docker.daemon import answers; exit(40 + answers(os.environ['DOCKER_HOST']))"
    done = run("--", sys.executable, "-c", here, DOCKER_HOST=nowhere, TMPDIR=str(short_folder))
    assert (done.returncode, done.stderr) == (41, "")
    assert list(short_folder.iterdir()) == []


@pytest.mark.docker
@needs_dockerd
def test_the_engine_of_a_killed_command_ends_and_is_swept(monkeypatch: pytest.MonkeyPatch, short_folder: Path) -> None:
    command = ["--", "sh", "-c", "echo $DOCKER_HOST; exec sleep 600"]
    environment = {**os.environ, "DOCKER_HOST": f"unix://{short_folder}/none.sock", "TMPDIR": str(short_folder)}
    starter = subprocess.Popen([*RUN, *command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    host = starter.stdout.readline().strip()
    folder = Path(host.removeprefix("unix://")).parent
    pid = int((folder / "pid").read_text())
    # What dockerd does to a containerd that is slow to answer: it writes its stacks to a file in TMPDIR.
    os.kill(int((folder / "exec/containerd/containerd.pid").read_text()), signal.SIGUSR1)
    while not list(short_folder.rglob("containerd.*.stacks.log")):
        pass
    children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text().split()
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    for child in map(int, children):
        if child != pid:
            os.kill(child, signal.SIGKILL)  # the command itself
    while Path(f"/proc/{pid}").exists():
        pass
    monkeypatch.setattr(daemon, "_base", lambda: short_folder)
    daemon.sweep()
    assert list(short_folder.iterdir()) == []


def test_sweeping_spares_what_is_none_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(daemon, "_base", lambda: tmp_path)
    held, dead = tmp_path / f"{daemon.PREFIX}held", tmp_path / f"{daemon.PREFIX}dead"
    for folder in (held, dead, tmp_path / "other"):
        folder.mkdir()
    (tmp_path / f"{daemon.PREFIX}link").symlink_to("other")
    lock = daemon._lock(held)
    daemon.sweep()
    assert {path.name for path in tmp_path.iterdir()} == {held.name, "other", f"{daemon.PREFIX}link"}
    assert lock is not None
    os.close(lock)


def test_the_base_image_has_a_python_without_packages_and_nothing_setuid() -> None:
    pytest.importorskip("docker")
    from deployments.docker import build_base

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        build_base.fill(build_base.Root(archive), ("iniconfig",))
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        members = {member.name: member for member in archive.getmembers()}
        assert len(members) == len(archive.getmembers())  # every place once
    assert all(name in members for name in ("usr/bin/sh", "usr/bin/timeout", "usr/bin/git", "etc/passwd", "workspace"))
    assert members["bin"].linkname == "usr/bin"
    assert not any(member.mode & 0o6000 for member in members.values())
    assert all(member.uid == 0 for member in members.values())
    packages = {name.split("-packages/")[1].split("/")[0] for name in members if "-packages/" in name}
    assert {name.partition("-")[0] for name in packages} == {"iniconfig"}
    for name, member in members.items():
        folder = name.rpartition("/")[0]
        assert not folder or members[folder].isdir(), name
        if member.issym():
            assert not member.linkname.startswith("/"), name


def test_a_package_that_is_not_installed_is_named() -> None:
    pytest.importorskip("docker")
    from deployments.docker import build_base

    with pytest.raises(build_base.BuildError, match="--with no-such-package"):
        list(build_base._closure(("no-such-package",)))
