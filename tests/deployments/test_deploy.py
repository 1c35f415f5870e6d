"""When deployments are entered anew."""

from deployments.deploy import _state
from deployments.server_kinds import DATABASE_VARIABLE
from deployments.services import Services


def test_another_database_has_no_deployments_yet(tmp_path, monkeypatch):
    services = Services("http://127.0.0.1:4200/api", "http://127.0.0.1:4200", "http://127.0.0.1:5000")
    monkeypatch.delenv(DATABASE_VARIABLE, raising=False)
    on_a_file = _state(tmp_path, services)
    assert on_a_file == _state(tmp_path, services)
    monkeypatch.setenv(DATABASE_VARIABLE, "postgresql+asyncpg://me:hunter22@host/prefect")
    elsewhere = _state(tmp_path, services)
    assert elsewhere != on_a_file and "hunter22" not in elsewhere
