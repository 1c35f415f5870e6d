"""What the system says of itself, and what engines say of their images."""

import types

import pytest
from support.tasks import write_task

from flows.config import parse_config
from flows.preflight import checks  # noqa: F401  (registers them)
from flows.preflight.facts import Facts
from flows.preflight.findings import Level
from flows.preflight.machine import GIB, Gpu, GpuProcess, Machine, disk_free, gib
from flows.preflight.run import run_checks
from harness.pool.index import TaskPointer, write_index
from harness.sandbox import SandboxUnavailable
from harness.sandbox import docker_engine as engines

SMI = """\
#!/bin/sh
case "$1" in
  *compute-apps*) echo "4711, GPU-aa, /usr/bin/python3, x"; echo "[N/A], GPU-aa, y";;
  *) echo "NVIDIA H200, 143771, GPU-aa"; echo "broken line";;
esac
"""


def test_this_machine():
    here = Machine.here()
    assert here.cpus >= 1 and 0 < here.memory_available <= here.memory
    assert here.open_files > 0 and here.processes > 0
    assert here.clock_synchronised in (True, False, None)


def test_gpus_as_nvidia_smi_lists_them(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    here = Machine.here()
    assert here.gpus == [Gpu("NVIDIA H200", 143771 * 2**20, "GPU-aa")]
    assert here.gpu_processes == [GpuProcess(4711, "GPU-aa", "/usr/bin/python3, x")]


def test_disk_of_a_folder_that_will_be(tmp_path):
    assert disk_free(tmp_path / "not" / "yet") > 0
    assert (gib(3 * GIB), gib(5 << 20)) == ("3.0 GiB", "5 MiB")


@pytest.fixture
def engine(monkeypatch):
    """An engine that answers as it is told."""
    told = types.SimpleNamespace(clock=0.0, found={"Id": "x"}, error=None, absent=())

    class Fake:
        def __init__(self, host):
            if told.error:
                raise told.error

        info = property(lambda self: types.SimpleNamespace(clock=told.clock))

        def image(self, name):
            return None if name in told.absent else told.found

    monkeypatch.setattr(engines, "Engine", Fake)
    monkeypatch.setattr("flows.preflight.checks.images.require_isolation", lambda config: None)
    return told


@pytest.mark.parametrize(
    ("answer", "docker", "level", "words"),
    [
        ({}, {}, Level.OK, "isolates, as a probe found"),
        ({"found": None}, {}, Level.FATAL, "testgrad-base:latest: is not on unix:///x.sock, and is not pulled"),
        ({"found": None}, {"image": "hub/x:1", "pull": "never"}, Level.FATAL, "hub/x:1: is not on unix:///x.sock"),
        ({"found": None}, {"image": "hub/x:1"}, Level.WARN, "the first trials wait for its pull"),
        ({"clock": 60.0}, {}, Level.WARN, "its clock is +60 s from ours"),
        ({"error": SandboxUnavailable("nobody there")}, {}, Level.FATAL, "nobody there"),
    ],
)
def test_images_of_an_engine(tmp_path, engine, answer, docker, level, words):
    vars(engine).update(answer)
    values = {"experiment": "e", "sandbox": {"backend": "docker", "docker": {"hosts": ["unix:///x.sock"]} | docker}}
    found = list(run_checks(Facts(parse_config(values, "x"), tmp_path), only=["isolation"]))
    assert [f.level for f in found if words in f.message] == [level], found


@pytest.mark.parametrize(("pull", "level"), [("never", Level.FATAL), ("missing", Level.WARN)])
def test_images_of_tasks_that_an_engine_lacks(tmp_path, engine, pull, level):
    task = write_task(tmp_path / "imaged")
    with (task / "task.toml").open("a") as file:
        file.write('\n[environment]\ndocker_image = "hub/task:1"\n')
    write_index([TaskPointer("imaged", task)], tmp_path / "train.parquet")
    engine.absent = ("hub/task:1",)
    values = {
        "experiment": "e",
        "data": {"train": str(tmp_path / "train.parquet")},
        "sandbox": {"backend": "docker", "docker": {"hosts": ["unix:///x.sock"], "image": "hub/x:1", "pull": pull}},
    }
    found = list(run_checks(Facts(parse_config(values, "x"), tmp_path), only=["isolation"]))
    (told,) = [f for f in found if "hub/task:1" in f.message]
    assert told.level is level and "1 of 1 images of sampled tasks are not on unix:///x.sock" in told.message


def test_a_backend_that_does_not_isolate(tmp_path, monkeypatch):
    def refuse(config):
        raise SandboxUnavailable("user namespaces are off; turn them on")

    monkeypatch.setattr("flows.preflight.checks.images.require_isolation", refuse)
    (found,) = run_checks(Facts(parse_config({"experiment": "e"}, "x"), tmp_path), only=["isolation"])
    assert found.level is Level.FATAL and "user namespaces are off" in found.message
