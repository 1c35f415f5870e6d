"""Snapshots out of images: taken once for each content, bounded, shared without harm, and whole after a kill."""

import io
import json
import os
import shutil
import subprocess
import tarfile
from contextlib import contextmanager

import pytest

from harness.pool.importers import images as module
from harness.pool.importers import import_pool
from harness.pool.importers.fill import fill_index
from harness.pool.importers.images import ImageSnapshots
from harness.pool.snapshot import history_problems, make_clean_copy
from harness.pool.task import Task, TaskEnvironment
from harness.sandbox.docker_config import DockerConfig, DockerHost
from harness.sandbox.docker_engine import EngineError

IMAGE = "acme/mathy:1"


class FakeEngine:
    """An engine whose images are folders: name -> (id, {folder in the image: folder here})."""

    host = DockerHost()

    def __init__(self, images):
        self.images = images
        self.taken = []
        self.built = {}

    def image(self, name):
        found = self.images.get(name)
        return found and {"Id": found[0], "Config": {"WorkingDir": "/testbed"}}

    def build(self, name, dockerfile):
        assert name not in self.images, "once is enough"
        self.built[name] = dockerfile
        self.images[name] = (name, {})

    @contextmanager
    def archive(self, image, folder, labels):
        self.taken.append((image, folder))
        assert labels["testgrad.pid"] == str(os.getpid()), "what is made is labelled"
        here = self.images[image][1].get(folder)
        if here is None:
            raise EngineError("no such folder", 404)
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            tar.add(here, folder.rpartition("/")[2])
        data = stream.getvalue()
        yield iter([data[i : i + 1000] for i in range(0, len(data), 1000)])


@pytest.fixture
def engine(library, tmp_path, monkeypatch):
    """An engine with one image: the clean library as SWE-smith has it, with all of its history."""
    clone = tmp_path / "testbed"
    shutil.copytree(library.repos / "acme__mathy", clone)
    subprocess.run(["git", "checkout", "-q", library.fixed], cwd=clone, check=True)
    fake = FakeEngine({IMAGE: ("sha256:a", {"/testbed": clone})})
    monkeypatch.setattr(module, "connect", lambda host: fake)
    return fake


@pytest.fixture
def smith(library):
    """A row of SWE-smith, whose image is named as the engine has it."""
    return {
        "instance_id": "acme__mathy.1234567.func_pm__x1",
        "patch": library.bug_patch,
        "FAIL_TO_PASS": ["tests/test_core.py::TestDouble::test_two"],
        "PASS_TO_PASS": ["tests/test_core.py::test_half"],
        "image_name": IMAGE,
        "repo": f"swesmith/acme__mathy.{library.fixed[:8]}",
        "problem_statement": "double is off by one",
    }


def imported(tmp_path, *rows, importer="swe_smith"):
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = import_pool(importer, source, tmp_path / "pool")
    assert report.rejected == () and report.index is not None
    return report.index


def filled(tmp_path, index):
    config = DockerConfig(image_record=tmp_path / "record.json")
    return fill_index(index, images=ImageSnapshots(config, tmp_path / "pool/.images"))


def test_tasks_of_one_image_share_its_files_and_nothing_else(tmp_path, engine, smith):
    other = smith | {"instance_id": "other", "patch": smith["patch"].replace("+ 1", "+ 2")}
    index = imported(tmp_path, smith, other)
    assert filled(tmp_path, index) == (2, [])
    assert engine.taken == [(IMAGE, "/testbed")]
    one, two = (Task.load(tmp_path / "pool/tasks" / name) for name in (smith["instance_id"], "other"))
    core = [(task.snapshot / "mathy/core.py").read_text() for task in (one, two)]
    assert "+ 1" in core[0] and "+ 2" in core[1]
    (kept,) = (tmp_path / "pool/.images").iterdir()
    assert "return x + x\n" in (kept / "repo/mathy/core.py").read_text(), "a bug changes its own task only"
    assert (one.snapshot / "setup.cfg").samefile(two.snapshot / "setup.cfg")
    assert filled(tmp_path, index) == (0, [])


def test_an_agent_gets_one_commit_of_an_image_that_had_all(tmp_path, engine, smith, library):
    filled(tmp_path, imported(tmp_path, smith))
    task = Task.load(tmp_path / "pool/tasks" / smith["instance_id"])
    assert list((task.snapshot / ".git").iterdir()) == []
    make_clean_copy(task.snapshot, tmp_path / "agent")
    assert history_problems(tmp_path / "agent") == []
    known = ["git", "cat-file", "-e", library.fixed]
    assert subprocess.run(known, cwd=tmp_path / "agent", capture_output=True, check=False).returncode != 0


def test_another_content_of_the_same_name_is_taken_anew(tmp_path, engine, smith):
    filled(tmp_path, imported(tmp_path, smith))
    engine.images[IMAGE] = ("sha256:b", engine.images[IMAGE][1])
    filled(tmp_path, imported(tmp_path, smith, smith | {"instance_id": "later"}))
    assert engine.taken == [(IMAGE, "/testbed")] * 2


def test_what_an_engine_cannot_give_is_told_and_leaves_nothing(tmp_path, engine, smith):
    engine.images[IMAGE] = ("sha256:a", {})
    _, (told,) = filled(tmp_path, imported(tmp_path, smith))
    assert f"/testbed cannot be taken out of image {IMAGE}: no such folder" in told.reason
    assert list((tmp_path / "pool/.images").iterdir()) == []


def test_a_tree_beyond_the_limits_is_refused(tmp_path, engine, smith, monkeypatch):
    monkeypatch.setattr("harness.pool.importers.archive.MAX_FILES", 3)
    _, (told,) = filled(tmp_path, imported(tmp_path, smith))
    assert "or 3 files" in told.reason


def test_an_interpreter_below_the_workspace_is_moved_and_what_tells_the_tests_is_removed(tmp_path, engine, smith):
    index = imported(tmp_path, smith, smith | {"instance_id": "other"})
    for name in (smith["instance_id"], "other"):
        file = tmp_path / "pool/tasks" / name / "task.toml"
        text = file.read_text().replace("/opt/miniconda3/envs/testbed/bin", "/testbed/.venv/bin")
        file.write_text(text.replace("[metadata]\n", '[metadata]\nhidden_places = ["/r2e tests"]\n'))
    assert filled(tmp_path, index) == (2, [])
    ((name, dockerfile),) = engine.built.items()
    assert dockerfile.startswith("FROM sha256:a\n") and "cp -a /testbed/.venv /opt/testgrad/env" in dockerfile
    assert "rm -rf '/r2e tests'\n" in dockerfile
    task = Task.load(file.parent)
    assert task.environment == TaskEnvironment(name, "/testbed", "/opt/testgrad/env/bin/python")
    assert task.config.metadata["adapted_from"] == IMAGE and engine.taken == [(IMAGE, "/testbed")]


def test_an_image_tells_the_folder_that_a_task_of_harbors_does_not(tmp_path, engine):
    folder = tmp_path / "set/plain"
    for name, text in {
        "instruction.md": "Do it.\n",
        "task.toml": f'[task]\nname = "org/plain"\n[environment]\ndocker_image = "{IMAGE}"\n',
        "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    report = import_pool("harbor", tmp_path / "set", tmp_path / "pool")
    assert filled(tmp_path, report.index) == (1, [])
    task = Task.load(tmp_path / "pool/tasks/plain")
    assert task.environment.workdir == "/testbed" and (task.snapshot / "mathy/core.py").is_file()


def test_a_kill_between_two_renames_costs_no_task(tmp_path, engine, smith):
    index = imported(tmp_path, smith)
    task = tmp_path / "pool/tasks" / smith["instance_id"]
    os.rename(task, task.with_name(f".{task.name}.abcd_123.before"))
    half = task.with_name(f".{task.name}.abcd_123.partial")
    half.mkdir()
    assert filled(tmp_path, index) == (1, [])
    assert Task.load(task).task_id == task.name and not half.exists()
