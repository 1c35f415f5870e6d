"""The parts of the docker backend that need no engine."""

import asyncio
import itertools
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.sandbox import (
    SandboxConfig,
    SandboxError,
    SandboxUnavailable,
    create_sandbox,
    docker_engine,
    docker_images,
)
from harness.sandbox.docker_config import DockerConfig, DockerHost, hosts_of
from harness.sandbox.docker_engine import Engine, EngineError
from harness.sandbox.docker_images import ImageRecord, ensure_image, make_room
from harness.sandbox.docker_keeper import tree_entries
from harness.sandbox.docker_pool import HostPool
from harness.sandbox.docker_stream import STDERR, STDOUT, Frames, Kept
from harness.sandbox.docker_threads import in_thread
from harness.sandbox.tree import WorkspaceError


def test_the_backend_loads_without_the_docker_package() -> None:
    code = "import sys; import harness.sandbox as s; print('docker' in s.SANDBOXES, 'docker' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


async def test_a_missing_docker_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    config = SandboxConfig(backend="docker", docker=DockerConfig(hosts=("unix:///nowhere/1",)))  # type: ignore[arg-type]
    with pytest.raises(SandboxUnavailable, match=r"pip install 'testgrad\[docker\]'"):
        await create_sandbox(config).start()


async def test_an_engine_that_does_not_answer_is_named(tmp_path: Path) -> None:
    pytest.importorskip("docker")
    hosts = (f"unix://{tmp_path}/none.sock",)
    sandbox = create_sandbox(SandboxConfig(backend="docker", docker=DockerConfig(hosts=hosts)))  # type: ignore[arg-type]
    with pytest.raises(SandboxUnavailable, match=r"none\.sock.*start it"):
        await sandbox.start()
    await sandbox.stop()


@pytest.mark.parametrize(
    ("host", "complaint"),
    [
        ({"url": "ssh://host"}, "none of unix"),
        ({"url": "tcp://10.0.0.1:2375"}, "without TLS"),
        ({"url": "unix:///run/docker.sock", "tls": "/certs"}, "leave out tls"),
        ({"url": "unix:///run/docker.sock", "slots": 0}, "slots"),
    ],
)
def test_hosts_that_cannot_be_used_safely_are_refused(host: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        DockerConfig(hosts=[host])  # type: ignore[arg-type]


def test_hosts_are_the_configured_ones_else_the_clients_own() -> None:
    given_hosts = DockerConfig(hosts=["unix:///a", {"url": "tcp://b:2376", "tls": "/certs", "slots": 2}])  # type: ignore[list-item,arg-type]
    assert [host.url for host in hosts_of(given_hosts, {})] == ["unix:///a", "tcp://b:2376"]
    assert hosts_of(DockerConfig(), {})[0].url == "unix:///var/run/docker.sock"
    assert hosts_of(DockerConfig(), {"DOCKER_HOST": "unix:///c"})[0].url == "unix:///c"
    remote = {"DOCKER_HOST": "tcp://d:2376", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/certs"}
    assert hosts_of(DockerConfig(), remote)[0].tls == Path("/certs")
    with pytest.raises(ValidationError, match="without TLS"):
        hosts_of(DockerConfig(), {"DOCKER_HOST": "tcp://d:2375"})


async def test_sandboxes_go_where_most_slots_are_free() -> None:
    pool = HostPool((DockerHost(url="unix:///a", slots=1), DockerHost(url="unix:///b", slots=3)))
    taken = [await pool.take(set()) for _ in range(4)]
    assert sorted(place.host.url for place in taken) == ["unix:///a", "unix:///b", "unix:///b", "unix:///b"]
    assert [place.host.url for place in taken[:2]] == ["unix:///b", "unix:///b"]
    waiting = asyncio.create_task(pool.take(set()))
    await asyncio.sleep(0)
    assert not waiting.done()
    await pool.give_back(taken[0])
    assert (await waiting).host.url == "unix:///b"


async def test_an_engine_that_fails_rests_and_comes_back() -> None:
    pool = HostPool((DockerHost(url="unix:///a", slots=9), DockerHost(url="unix:///b", slots=1)))
    place = await pool.take(set())
    assert place.host.url == "unix:///a"
    pool.failed(place)
    await pool.give_back(place)
    other = await pool.take(set())
    assert other.host.url == "unix:///b"
    await pool.give_back(other)
    first_rest = place.rests_until - time.monotonic()
    pool.failed(place)
    assert place.rests_until - time.monotonic() > first_rest
    pool.worked(place)
    assert (await pool.take(set())).host.url == "unix:///a"


async def test_when_all_engines_rest_one_is_tried_all_the_same() -> None:
    pool = HostPool((DockerHost(url="unix:///a"),))
    pool.failed(pool.places[0])
    assert (await pool.take(set())).host.url == "unix:///a"


@given(
    st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=50)), max_size=10),
    st.lists(st.integers(0, 400), max_size=20),
)
def test_frames_are_the_same_however_they_arrive(pieces: list[tuple[int, bytes]], cuts: list[int]) -> None:
    sent = b"".join(bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data for kind, data in pieces)
    places = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    frames, heard = Frames(), {STDOUT: b"", STDERR: b""}
    for start, end in itertools.pairwise(places):
        for kind, data in frames.feed(sent[start:end]):
            heard[kind] += data
    for kind in heard:
        assert heard[kind] == b"".join(data for number, data in pieces if number == kind)


def test_outputs_are_kept_up_to_their_limit() -> None:
    kept = Kept(5)
    kept.add(b"abc")
    assert not kept.truncated
    kept.add(b"de")
    assert not kept.truncated
    kept.add(b"f")
    assert (bytes(kept.data), kept.truncated) == (b"abcde", True)


_fakes = itertools.count()


class FakeEngine:
    """As much of an engine as the image cache asks for: images of one gigabyte each on a disk of ten."""

    def __init__(self, images: list[str], busy: set[str] | None = None, pull_errors: list[EngineError] | None = None):
        self.host = DockerHost(url=f"tcp://fake-{next(_fakes)}:1", tls="/certs")  # type: ignore[arg-type]
        self.images = images
        self.busy = busy or set()
        self.pull_errors = pull_errors or []
        self.pulls = 0
        self.hang = False
        self.config: dict[str, Any] = {}
        self.info = type("Info", (), {"root": "/none"})()

    @property
    def free_bytes(self) -> int:
        return (10 - len(self.images)) << 30

    def image(self, name: str) -> dict[str, Any] | None:
        return {"Config": self.config} if name in self.images else None

    def pull(self, name: str, timeout: float, stop: threading.Event) -> None:
        self.pulls += 1
        if self.hang:
            stop.wait(60)
            raise EngineError("cancelled")
        if self.pull_errors:
            raise self.pull_errors.pop(0)
        self.images.append(name)

    def remove_image(self, name: str) -> bool:
        if name in self.busy:
            return False
        self.images.remove(name)
        return True


def config(tmp_path: Path, **changes: Any) -> DockerConfig:
    return DockerConfig(image="wanted:1", image_record=tmp_path / "record.json", **changes)


def test_a_pull_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_images, "_PAUSE", 0.0)
    engine = FakeEngine([], pull_errors=[EngineError("reset", 500), EngineError("no answer")])
    ensure_image(engine, config(tmp_path), threading.Event())  # type: ignore[arg-type]
    assert (engine.pulls, engine.images) == (3, ["wanted:1"])
    ensure_image(engine, config(tmp_path), threading.Event())  # type: ignore[arg-type]
    assert engine.pulls == 3


def test_a_pull_that_fails_for_good_is_the_machines_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_images, "_PAUSE", 0.0)
    engine = FakeEngine([], pull_errors=[EngineError("reset", 500)] * 9)
    with pytest.raises(SandboxError, match="2 tries: reset"):
        ensure_image(engine, config(tmp_path, pull_attempts=2), threading.Event())  # type: ignore[arg-type]
    unknown = FakeEngine([], pull_errors=[EngineError("no such image", 404)])
    with pytest.raises(SandboxUnavailable, match="build_base"):
        ensure_image(unknown, config(tmp_path), threading.Event())  # type: ignore[arg-type]
    assert unknown.pulls == 1


async def test_a_slow_pull_can_be_cancelled_by_all_who_wait(tmp_path: Path) -> None:
    engine, docker = FakeEngine([]), config(tmp_path)
    engine.hang = True

    async def ensure() -> None:
        stop = threading.Event()
        await in_thread(lambda: ensure_image(engine, docker, stop), stop.set)  # type: ignore[arg-type]

    tasks = [asyncio.create_task(ensure()) for _ in range(3)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    assert all(isinstance(result, asyncio.CancelledError) for result in done)


def test_an_absent_image_is_not_pulled_where_that_is_forbidden(tmp_path: Path) -> None:
    engine = FakeEngine([])
    with pytest.raises(SandboxUnavailable, match="pull is never"):
        ensure_image(engine, config(tmp_path, pull="never"), threading.Event())  # type: ignore[arg-type]
    with pytest.raises(SandboxUnavailable, match="build_base"):  # no registry has the base image
        ensure_image(engine, DockerConfig(image_record=tmp_path / "record.json"), threading.Event())  # type: ignore[arg-type]
    assert engine.pulls == 0


def test_an_image_with_volumes_of_its_own_is_refused(tmp_path: Path) -> None:
    engine = FakeEngine(["wanted:1"])
    engine.config = {"Volumes": {"/data": {}}}
    with pytest.raises(SandboxUnavailable, match="/data"):
        ensure_image(engine, config(tmp_path), threading.Event())  # type: ignore[arg-type]


def test_room_is_made_by_removing_what_was_unused_longest(tmp_path: Path) -> None:
    docker = config(tmp_path, disk_floor_bytes=5 << 30)
    engine = FakeEngine(["theirs:1", "a:1", "b:1", "c:1", "d:1", "e:1", "wanted:1"], busy={"b:1"})
    record = ImageRecord(tmp_path / "record.json")
    for name in ("wanted:1", "a:1", "b:1", "c:1", "d:1", "e:1"):
        record.pulled(engine.host.url, name)
    record.used(engine.host.url, "a:1")
    record.used(engine.host.url, "theirs:1")  # was not pulled here
    assert make_room(engine, docker, record) == ["c:1", "d:1"]  # type: ignore[arg-type]
    assert set(engine.images) == {"theirs:1", "a:1", "b:1", "e:1", "wanted:1"}
    assert set(record.oldest_first(engine.host.url)) == {"wanted:1", "a:1", "b:1", "e:1"}


def test_too_little_room_is_said(tmp_path: Path) -> None:
    engine = FakeEngine(["theirs:1", "theirs:2"])
    with pytest.raises(SandboxError, match="disk_floor_bytes"):
        ensure_image(engine, config(tmp_path, disk_floor_bytes=9 << 30), threading.Event())  # type: ignore[arg-type]
    assert (engine.images, engine.pulls) == (["theirs:1", "theirs:2"], 0)


def test_a_broken_record_makes_nothing_removable(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for text in ('{"tcp://x', "[1]", '{"tcp://x": {"a:1": "soon"}}'):
        path.write_text(text)
        assert ImageRecord(path).oldest_first("tcp://x") == []
    ImageRecord(path).pulled("tcp://x", "a:1")
    assert list(json.loads(path.read_text())["tcp://x"]) == ["a:1"]


class BusyClient:
    """A client of an engine that refuses some times with `status`, then knows nothing of what it is asked for."""

    def __init__(self, status: int, times: int) -> None:
        self.status, self.times, self.asked = status, times, 0

    def remove_volume(self, name: str, **more: Any) -> None:
        from docker.errors import APIError
        from requests import Response

        self.asked += 1
        response = Response()
        response.status_code = self.status if self.asked <= self.times else 404
        raise APIError("volume is in use", response=response)

    remove_container = remove_volume


@pytest.mark.parametrize("what", ["remove", "remove_volume"])
def test_what_is_still_in_use_is_removed_a_moment_later(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docker")
    engine = Engine.__new__(Engine)
    engine.host, engine._sdk, engine._client = DockerHost(), docker_engine._sdk(), BusyClient(409, 3)
    getattr(engine, what)("v")
    assert engine._client.asked == 4
    monkeypatch.setattr(docker_engine, "_GONE_TIMEOUT", 0.05)
    for status, times in ((409, 1000), (500, 1)):
        engine._client = BusyClient(status, times)
        with pytest.raises(EngineError, match="cannot remove a"):
            getattr(engine, what)("v")


def test_snapshots_with_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    (tmp_path / "repo" / "inner").mkdir(parents=True)
    (tmp_path / "repo" / "a").write_text("x")
    (tmp_path / "repo" / "inner" / "up").symlink_to("../a")
    entries = {entry["path"]: entry["kind"] for entry, _ in tree_entries(tmp_path / "repo", "at")}
    assert entries == {"at": "folder", "at/a": "file", "at/inner": "folder", "at/inner/up": "link"}
    for target in ("../../outside", "/etc/passwd", "../inner/../../b"):
        link = tmp_path / "repo" / "inner" / "out"
        link.symlink_to(target)
        with pytest.raises(WorkspaceError, match="outside"):
            list(tree_entries(tmp_path / "repo", "."))
        link.unlink()
