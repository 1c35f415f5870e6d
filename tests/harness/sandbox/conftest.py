"""The backends that the contract tests run on."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.docker import docker_sandbox, skipped
from support.kube import FakeCluster, fake_cluster
from support.sandboxes import Make

from harness.sandbox import Sandbox, SandboxConfig, create_sandbox

ON_DOCKER = {"test_contract_exec", "test_contract_grading", "test_contract_hostile_files"}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "not_on(backend, reason): this part of the contract cannot be shown there")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in the open that a backend was not tested: a skipped test is easily overlooked."""
    if skipped:
        terminalreporter.section("the docker backend was NOT tested", yellow=True)
        terminalreporter.write_line(f"{len(skipped)} tests were skipped: {skipped[0]}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what cannot be shown on a backend, and what a container shows no better than another backend."""
    for item in items:
        backend = (
            item.callspec.params.get("make")
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
            else None
        )
        for mark in item.iter_markers("not_on"):
            if mark.args[0] == backend:
                item.add_marker(pytest.mark.skip(reason=mark.args[1]))


@pytest_asyncio.fixture(params=["bubblewrap", "kubernetes", pytest.param("docker", marks=pytest.mark.docker)])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """A maker of sandboxes of each backend in turn: docker on a real engine, kubernetes on a fake cluster.

    Containers start slowly: they are used by the tests of some files only, unless TESTGRAD_ALL_DOCKER=1.
    """
    if request.param == "kubernetes":
        async with fake_cluster() as cluster:
            yield lambda **changes: create_sandbox(cluster.config(**changes))
        return
    every = os.environ.get("TESTGRAD_ALL_DOCKER") or request.path.stem in ON_DOCKER
    if request.param == "docker" and not every:
        pytest.skip("TESTGRAD_ALL_DOCKER=1 runs it on docker too")

    def sandbox(**changes: Any) -> Sandbox:
        return create_sandbox(docker_sandbox(**changes) if request.param == "docker" else SandboxConfig(**changes))

    yield sandbox


@pytest_asyncio.fixture
async def sandbox(make: Make) -> AsyncIterator[Sandbox]:
    """A started sandbox of each backend in turn."""
    async with make() as started:
        yield started


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """A fake cluster, with nothing of it left afterwards."""
    async with fake_cluster() as running:
        yield running
