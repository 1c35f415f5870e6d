import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments import server_process, server_record, services
from deployments.server_kinds import KINDS, Kind, Place

SERVER = """
import http.server, os, subprocess, sys
if "child" in sys.argv:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), type("H", (http.server.BaseHTTPRequestHandler,), {
    "do_GET": lambda self: (self.send_response(200), self.end_headers()), "log_message": lambda *a: None,
})).serve_forever()
"""


def stand_in(*extra: str, script: str = SERVER) -> Callable[[Place], list[str]]:
    return lambda place: ["-c", script, str(place.port), *extra]


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> dict[str, Kind]:
    """Small programs in the servers' places: what is tested here is whose processes are kept and stopped."""
    kinds = {
        name: Kind(
            name, 0, "/health", stand_in(*extra), lambda place: {}, after=("prefect",) if name == "worker" else ()
        )
        for name, extra in {"prefect": [], "mlflow": ["child"], "worker": []}.items()
    }
    monkeypatch.setattr(services, "KINDS", kinds)
    return kinds


def recorded(root: Path) -> dict[str, dict[str, int]]:
    return dict(json.loads((root / "services" / "services.json").read_text())["servers"])


def session(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, *fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == leader and state != "Z":
                found.append(int(entry.name))
    return found


def test_up_twice_is_up_once_and_down_stops_child_processes(tmp_path: Path, light: dict[str, Kind]) -> None:
    try:
        first = services.up(tmp_path)
        leaders = [entry["pid"] for entry in recorded(tmp_path).values()]
        assert len(session(recorded(tmp_path)["mlflow"]["pid"])) == 2
        assert services.up(tmp_path) == first == services.read_services(tmp_path)
        assert [entry["pid"] for entry in recorded(tmp_path).values()] == leaders
        while [entry.state for entry in services.status(tmp_path)] != ["up", "up", "up"]:  # one may be late to answer
            time.sleep(0.1)
    finally:
        services.down(tmp_path)
    assert [session(leader) for leader in leaders] == [[], [], []]
    assert services.read_services(tmp_path) is None
    assert [entry.state for entry in services.status(tmp_path)] == ["down", "down", "down"]
    services.down(tmp_path)


def test_only_what_died_is_started_again_with_what_it_left_stopped(tmp_path: Path, light: dict[str, Kind]) -> None:
    try:
        services.up(tmp_path)
        before = recorded(tmp_path)
        os.kill(before["mlflow"]["pid"], signal.SIGKILL)
        while services.read_services(tmp_path) is not None:
            time.sleep(0.05)
        assert session(before["mlflow"]["pid"]), "its child process outlives it"
        services.up(tmp_path)
        after = recorded(tmp_path)
        assert after["prefect"] == before["prefect"] and after["mlflow"]["pid"] != before["mlflow"]["pid"]
        assert session(before["mlflow"]["pid"]) == []
    finally:
        services.down(tmp_path)


def test_down_spares_a_stranger_that_got_the_same_process_id(tmp_path: Path, light: dict[str, Kind]) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        (tmp_path / "services").mkdir()
        server_record.write_servers(
            tmp_path, {"prefect": server_record.Server(pid=stranger.pid, started=1, port=1)}, ready=True
        )
        assert services.read_services(tmp_path) is None
        services.down(tmp_path)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_taken_port_is_tried_again_elsewhere(
    tmp_path: Path, light: dict[str, Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program takes the port between the look and the bind: the stranger answers, and is not believed."""
    taken = subprocess.Popen([sys.executable, "-c", SERVER, "0"])
    honest = services._free_port
    with_stranger = iter([stranger_port(taken.pid)])
    monkeypatch.setattr(
        services, "_free_port", lambda preferred, used, host: next(with_stranger, None) or honest([], used)
    )
    try:
        answer = services.up(tmp_path)
        assert f":{stranger_port(taken.pid)}" not in answer.prefect_api_url
    finally:
        services.down(tmp_path)
        taken.kill()
        taken.wait()


def stranger_port(pid: int) -> int:
    while True:
        for connection in server_process.psutil.Process(pid).net_connections("tcp"):
            if connection.status == "LISTEN":
                return int(connection.laddr.port)
        time.sleep(0.05)


def test_a_server_that_ends_is_reported_and_the_other_stopped(
    tmp_path: Path, light: dict[str, Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Kind("MLflow", 0, "/health", stand_in(script="raise SystemExit('no such table')"), lambda *a: {})
    monkeypatch.setitem(services.KINDS, "mlflow", broken)
    with pytest.raises(
        services.ServiceError, match=r"MLflow ended before it answered: no such table \(log: .*mlflow.log"
    ):
        services.up(tmp_path)
    assert not (tmp_path / "services" / "services.json").exists()
    assert [entry.state for entry in services.status(tmp_path)] == ["down", "down", "down"]


def test_servers_ask_first_for_the_ports_they_had(
    tmp_path: Path, light: dict[str, Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, free_port = [], services._free_port

    def noting(preferred: list[int], *rest: Any) -> int:
        asked.append(preferred[0])
        return free_port(preferred, *rest)

    try:
        services.up(tmp_path)
        had = [entry["port"] for entry in recorded(tmp_path).values()]
        services.down(tmp_path)
        monkeypatch.setattr(services, "_free_port", noting)
        services.up(tmp_path)
        assert sorted(asked) == sorted(had)
    finally:
        services.down(tmp_path)


def test_servers_do_not_inherit_ignored_signals(tmp_path: Path, light: dict[str, Kind]) -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        services.up(tmp_path)
        pid = recorded(tmp_path)["prefect"]["pid"]
        status = Path(f"/proc/{pid}/status").read_text()
    finally:
        signal.signal(signal.SIGINT, previous)
        services.down(tmp_path)
    ignored = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")), 16)
    assert not ignored & (1 << (signal.SIGINT - 1))


def test_the_worker_is_started_when_its_server_answers_and_is_told_where(
    tmp_path: Path, light: dict[str, Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Place] = []
    worker = Kind("worker", 0, "/health", stand_in(), lambda place: told.append(place) or {}, after=("prefect",))  # type: ignore[func-returns-value]
    monkeypatch.setitem(services.KINDS, "worker", worker)
    try:
        answer = services.up(tmp_path)
        assert f"{told[0].urls['prefect']}/api" == answer.prefect_api_url
        os.kill(recorded(tmp_path)["worker"]["pid"], signal.SIGKILL)
        assert services.read_services(tmp_path) == answer, "the servers are of use without a worker"
    finally:
        services.down(tmp_path)


def test_servers_keep_to_loopback_unless_told(tmp_path: Path, light: dict[str, Kind]) -> None:
    try:
        services.up(tmp_path)
        assert {server.host for server in server_record.read_servers(tmp_path).values()} == {"127.0.0.1"}
        with pytest.raises(services.ServiceError, match=r"listens on 127.0.0.1, not on 0.0.0.0; `testgrad down` first"):
            services.up(tmp_path, host="0.0.0.0")
    finally:
        services.down(tmp_path)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_commands_bind_where_they_are_told(tmp_path: Path, host: str) -> None:
    place = Place(tmp_path, host, 4242, {"prefect": "http://127.0.0.1:4200"})
    for name in ("prefect", "mlflow"):
        command = KINDS[name].command(place)
        assert command[command.index("--host") + 1] == host
    assert ("--allowed-hosts" in KINDS["mlflow"].command(place)) == (host != "127.0.0.1")
    assert KINDS["worker"].environment(place)["PREFECT_WORKER_WEBSERVER_HOST"] == "127.0.0.1"


def test_one_variable_puts_prefect_on_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, "127.0.0.1", 4242, {})
    assert "PREFECT_API_DATABASE_CONNECTION_URL" not in KINDS["prefect"].environment(place)
    monkeypatch.setenv("TESTGRAD_PREFECT_DATABASE", "postgresql+asyncpg://me@db/prefect")
    assert KINDS["prefect"].environment(place)["PREFECT_API_DATABASE_CONNECTION_URL"].endswith("@db/prefect")
