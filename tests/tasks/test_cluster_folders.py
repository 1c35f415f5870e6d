"""Folders of private Ray clusters: those of dead processes go, others stay."""

import os
import subprocess

import pytest

from harness.reaper import Sweep
from tasks.cluster_folders import sweep_cluster_folders
from trainer.placement import FOLDER


@pytest.fixture
def dead():
    """The pid of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_the_folder_of_a_dead_process_goes_and_nothing_else(tmp_path, monkeypatch, dead):
    monkeypatch.setattr("tasks.cluster_folders.cluster_base", lambda: str(tmp_path))
    names = [f"{FOLDER}{dead}-x", f"{FOLDER}{os.getpid()}-x", f"{FOLDER}x", "testgrad-notes"]
    for name in names:
        (tmp_path / name / "session").mkdir(parents=True)
    (tmp_path / f"{FOLDER}{dead}-link").symlink_to(tmp_path / "testgrad-notes")

    looked = Sweep()
    sweep_cluster_folders(looked, apply=False)
    (found,) = looked.found
    assert (found.name, found.labels["testgrad.pid"]) == (str(tmp_path / names[0]), str(dead))
    assert (tmp_path / names[0]).is_dir()
    found.remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[1:], f"{FOLDER}{dead}-link"])
    found.remove()


def test_what_cannot_be_removed_is_told(tmp_path, monkeypatch, dead):
    monkeypatch.setattr("tasks.cluster_folders.cluster_base", lambda: str(tmp_path))
    folder = tmp_path / f"{FOLDER}{dead}-x"
    folder.mkdir()

    def refuse(path):
        raise PermissionError("busy")

    monkeypatch.setattr("tasks.cluster_folders.shutil.rmtree", refuse)
    sweep = Sweep()
    sweep_cluster_folders(sweep, apply=True)
    assert sweep.failed == {str(folder): "busy"}
