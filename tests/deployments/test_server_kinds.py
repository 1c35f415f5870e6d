"""How the servers are started: who may speak to them."""

from prefect.settings.models.server.api import ServerAPISettings

from deployments.process_environment import process_environment
from deployments.server_kinds import KINDS, Place


def origins(environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return ServerAPISettings().cors_allowed_origins.split(",")


def test_no_page_but_its_own_speaks_to_prefect(tmp_path, monkeypatch):
    place = Place(tmp_path, "127.0.0.1", 4200, {})
    allowed = origins(KINDS["prefect"].environment(place), monkeypatch)
    assert {"http://127.0.0.1:4200", "http://localhost:4200"} <= set(allowed) and "*" not in allowed
    assert all(origin.startswith("http://") and origin.endswith(":4200") for origin in allowed)
    assert origins(process_environment(tmp_path), monkeypatch) == ["http://127.0.0.1"]
