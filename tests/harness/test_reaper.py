"""Leftovers of dead owners go, and nothing else."""

import asyncio
import fcntl
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flows.commands.clean import print_sweep
from harness import reaper
from harness.reaper import Sweep, reap, reaping
from harness.sandbox import SANDBOXES, SandboxConfig, SandboxUnavailable
from harness.sandbox.leftovers import Leftover, make_base, remove_base
from harness.sandbox.owner import Owner, current_owner, is_alive, labels, owned_by


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary directory, without what others have left in the real one."""
    folder = tmp_path_factory.mktemp("system")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr("tasks.cluster_folders.cluster_base", lambda: str(folder))
    return folder


DIES_WITH_A_FOLDER = """\
import os, sys
from pathlib import Path
from harness.sandbox.leftovers import make_base
from harness.sandbox.owner import current_owner, labels, owned_by
with owned_by(project="shop", run="exp1", trial="t-7"):
    base, lock = make_base(Path(sys.argv[1]))
    (base / "workspace" / "deep").mkdir(parents=True)
    print(base)
    print(labels(current_owner()))
    sys.stdout.flush()
os._exit(9)
"""


def die(root: Path) -> tuple[Path, dict[str, str]]:
    """What a process left in `root` when it died: its folder, and the labels it put on things."""
    done = subprocess.run([sys.executable, "-c", DIES_WITH_A_FOLDER, str(root)], capture_output=True, text=True)
    folder, owner = done.stdout.splitlines()
    with suppress(FileNotFoundError):  # a reaper may look already
        os.utime(folder, (time.time() - 3600,) * 2)
    return Path(folder), eval(owner)


def test_the_living_are_alive_and_the_dead_are_dead(tmp_path: Path) -> None:
    mine = labels(current_owner())
    _, dead = die(tmp_path)
    assert is_alive(mine)
    assert not is_alive(dead)
    assert not is_alive({**mine, "testgrad.started": "another-boot.1"}), "a pid that is used again"


SCRATCH = """
import os
from harness.pool.snapshot import scratch
from harness.sandbox.owner import owned_by
with owned_by(run="exp1", trial="t-7"), scratch() as folder:
    (folder / "repo").mkdir()
    print(folder, flush=True)
    os._exit(9)
"""


def test_a_helpers_folder_is_found_too(tmp_path: Path, temporary: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRATCH], capture_output=True, text=True, env={**os.environ, "TMPDIR": str(temporary)}
    )
    folder = Path(done.stdout.strip())
    assert (folder / "repo").is_dir() and folder.parent == temporary
    (leftover,) = reap(SandboxConfig(root=tmp_path)).found
    assert (leftover.name, leftover.labels["testgrad.trial"]) == (str(folder), "t-7") and not folder.exists()


def test_what_cannot_be_judged_counts_as_alive(tmp_path: Path) -> None:
    _, dead = die(tmp_path)
    assert is_alive({**dead, "testgrad.host": "elsewhere"})
    assert is_alive({**dead, "testgrad.pid": "many"})
    assert is_alive({})
    assert is_alive({"maintainer": "somebody"})
    assert is_alive({key: value for key, value in dead.items() if key != "testgrad.started"})


async def test_owners_nest_and_reach_tasks() -> None:
    async def inside() -> Owner:
        return current_owner()

    with owned_by(project="shop", run="exp 1"):
        with owned_by(trial="t/7"):
            owner = await asyncio.create_task(inside())
        assert current_owner().trial == "none"
    assert (owner.project, owner.run, owner.trial, owner.pid) == ("shop", "exp-1", "t-7", os.getpid())
    assert current_owner().run == "none"


def test_a_dead_process_leaves_nothing_that_a_living_one_loses(tmp_path: Path) -> None:
    dead, _ = die(tmp_path)
    alive, lock = make_base(tmp_path)
    bystander = tmp_path / "testgrad-notes"
    bystander.mkdir()
    config = SandboxConfig(root=tmp_path)
    try:
        looked = reap(config, apply=False)
        assert [leftover.name for leftover in looked.found] == [str(dead)] and dead.exists()
        assert looked.found[0].labels["testgrad.trial"] == "t-7"
        assert looked.found[0].since == pytest.approx(time.time() - 3600, abs=60)
        removed = reap(config)
        assert [leftover.name for leftover in removed.found] == [str(dead)] and not removed.failed
        assert sorted(tmp_path.iterdir()) == sorted([alive, bystander])
        assert reap(config) == Sweep(), "twice is harmless"
        looked.found[0].remove()  # gone meanwhile
    finally:
        remove_base(alive, lock)


@pytest.mark.parametrize("backend", ["bubblewrap", "boxes"])
def test_folders_in_the_systems_temporary_directory_are_found_whatever_the_backend(
    tmp_path: Path, temporary: Path, monkeypatch, backend: str
) -> None:
    monkeypatch.setitem(SANDBOXES, "boxes", SANDBOXES["bubblewrap"])
    dead, _ = die(temporary)
    assert [leftover.name for leftover in reap(SandboxConfig(backend=backend, root=tmp_path)).found] == [str(dead)]
    assert not dead.exists()


def test_a_folder_that_came_to_life_after_the_look_stays(tmp_path: Path) -> None:
    dead, _ = die(tmp_path)
    (leftover,) = reap(SandboxConfig(root=tmp_path), apply=False).found
    lock = os.open(dead, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        leftover.remove()
        assert dead.exists()
    finally:
        os.close(lock)


def test_owner_files_are_not_believed_blindly(tmp_path: Path) -> None:
    dead, _ = die(tmp_path)
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"testgrad.trial": "secret"}))
    (dead / "owner.json").unlink()
    (dead / "owner.json").symlink_to(secret)
    (leftover,) = reap(SandboxConfig(root=tmp_path), apply=False).found
    assert leftover.labels == {}


def test_one_failure_and_one_silent_backend_do_not_stop_the_rest(tmp_path: Path, monkeypatch) -> None:
    removed = []

    def stuck() -> None:
        raise RuntimeError("device busy")

    def leftovers(config: SandboxConfig) -> list[Leftover]:
        assert config.backend == "boxes"
        return [
            Leftover("boxes", "container", "stuck", {}, None, stuck),
            Leftover("boxes", "container", "loose", {}, None, lambda: removed.append("loose")),
        ]

    def silent(config: SandboxConfig) -> list[Leftover]:
        raise SandboxUnavailable("no daemon answers; start it")

    finders = {"boxes": leftovers, "silent": silent}
    monkeypatch.setattr(reaper, "_finder", finders.__getitem__)
    sweep = reap(SandboxConfig(root=tmp_path), ["silent", "boxes"])
    assert removed == ["loose"]
    assert sweep.failed == {"stuck": "RuntimeError: device busy"}
    assert sweep.unreachable == {"silent": "no daemon answers; start it"}
    console = Console(width=200, record=True, file=io.StringIO())
    print_sweep(console, sweep, applied=True)
    text = console.export_text()
    assert "1 of 2 removed" in text and "device busy" in text and "no daemon answers" in text


async def test_a_run_reaps_at_its_start_and_from_time_to_time(tmp_path: Path) -> None:
    first, _ = die(tmp_path)
    async with reaping(SandboxConfig(root=tmp_path), period=0.01):
        assert not first.exists()
        second, _ = await asyncio.to_thread(die, tmp_path)
        while second.exists():
            await asyncio.sleep(0.01)
    assert not list(tmp_path.iterdir())


def test_clean_lists_first_and_removes_when_told(tmp_path: Path, monkeypatch) -> None:
    import typer

    from flows.commands import clean as command

    app = typer.Typer()
    app.command()(command.clean)
    monkeypatch.setattr(command, "sandbox_config", lambda config: SandboxConfig(root=tmp_path))
    monkeypatch.setattr(command, "SANDBOXES", {"bubblewrap": SANDBOXES["bubblewrap"]})
    monkeypatch.setattr(command, "console", Console(width=200))
    run = CliRunner().invoke
    assert "nothing is left over" in run(app, []).stdout
    dead, _ = die(tmp_path)
    listed = run(app, [])
    assert listed.exit_code == 0 and "shop/exp1/t-7" in listed.stdout and dead.name in listed.stdout
    assert dead.exists(), "listing removes nothing"
    assert "1 of 1 removed" in run(app, ["--apply"]).stdout and not dead.exists()
    assert "nothing is left over" in run(app, ["--apply"]).stdout
