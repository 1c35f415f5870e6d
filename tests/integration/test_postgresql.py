"""Prefect on PostgreSQL, by the one setting that says so: a private cluster, the server, and flow runs in it.

`TESTGRAD_TEST_POSTGRESQL=1 pytest tests/integration/test_ui.py tests/integration/test_operation.py` has the tests of
deployments, worker and pages run on it too.
"""

import asyncio
from pathlib import Path

import asyncpg
import psutil
import pytest
from support.postgres import postgres
from support.retried import steps_of_a_retried_run

from deployments.server_kinds import DATABASE_VARIABLE
from deployments.services import down, status, up


def test_prefect_keeps_its_records_in_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with postgres() as address:
        monkeypatch.setenv(DATABASE_VARIABLE, address)
        try:
            services = up(tmp_path, worker=False)
            assert steps_of_a_retried_run(services) == ([1, 2, 2, 3], [2, 3])
            told = {entry.name: psutil.Process(entry.pid).environ() for entry in status(tmp_path) if entry.pid}
        finally:
            down(tmp_path)
        names = asyncio.run(_names(address))
    assert not list(tmp_path.rglob("prefect.db"))
    assert sorted(names) == ["step-1", "step-2", "step-2", "step-3"], "the step that failed is history"
    assert [name for name, environment in told.items() if address in environment.values()] == ["prefect"], (
        "the password is the server's alone"
    )


async def _names(address: str) -> list[str]:
    """Of the flow runs below another, as PostgreSQL has them after Prefect has gone."""
    connection = await asyncpg.connect(address.replace("+asyncpg", ""))
    try:
        rows = await connection.fetch("select name from flow_run where parent_task_run_id is not null")
    finally:
        await connection.close()
    return [row["name"] for row in rows]
