import json
import socket
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from deployments.services import down, read_services, status, up


def get(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=30) as answer:
        assert answer.status == 200
        return bytes(answer.read())


def test_prefect_and_mlflow_come_up_serve_and_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leaders: list[int] = []
    try:
        services = up(tmp_path)
        shown = capsys.readouterr().out
        assert services.prefect_ui_url in shown and services.mlflow_url in shown

        assert get(f"{services.prefect_api_url}/health") == b"true"
        page = json.loads(get(f"{services.prefect_ui_url}/ui-settings"))
        assert page["api_url"] == services.prefect_api_url, "Prefect's page must call the server that serves it"
        assert get(f"{services.mlflow_url}/health") == b"OK"
        assert b"mlflow" in get(services.mlflow_url).lower()
        assert (tmp_path / "mlflow.db").is_file() and (tmp_path / "services" / "prefect" / "prefect.db").is_file()

        leaders = [entry.pid for entry in status(tmp_path) if entry.pid is not None]
        assert [entry.state for entry in status(tmp_path)] == ["up", "up"]
        members = [process for leader in leaders for process in psutil.Process(leader).children(recursive=True)]
        assert up(tmp_path) == services == read_services(tmp_path)
        assert [entry.pid for entry in status(tmp_path)] == leaders
    finally:
        down(tmp_path)

    assert read_services(tmp_path) is None
    assert not [process for process in members if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert not [leader for leader in leaders if psutil.pid_exists(leader)]
    for url in (services.prefect_ui_url, services.mlflow_url):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(urlsplit(url).port or 0)), timeout=5).close()
