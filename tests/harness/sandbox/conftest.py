"""The backends that the contract tests run on."""

import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support.docker import docker_sandbox, skipped
from support.sandboxes import Make

from harness.sandbox import Sandbox, SandboxConfig, create_sandbox

ON_DOCKER = {"test_contract_exec", "test_contract_grading"}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in the open that a backend was not tested: a skipped test is easily overlooked."""
    if skipped:
        terminalreporter.section("the docker backend was NOT tested", yellow=True)
        terminalreporter.write_line(f"{len(skipped)} tests were skipped: {skipped[0]}")


@pytest.fixture(params=["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)])
def make(request: pytest.FixtureRequest) -> Make:
    """A maker of sandboxes of each backend in turn.

    Containers start slowly: they are used by the tests of some files only, unless TESTGRAD_ALL_DOCKER=1.
    """
    every = os.environ.get("TESTGRAD_ALL_DOCKER") or request.path.stem in ON_DOCKER
    if request.param == "docker" and not every:
        pytest.skip("TESTGRAD_ALL_DOCKER=1 runs it on docker too")

    def sandbox(**changes: Any) -> Sandbox:
        return create_sandbox(docker_sandbox(**changes) if request.param == "docker" else SandboxConfig(**changes))

    return sandbox


@pytest_asyncio.fixture
async def sandbox(make: Make) -> AsyncIterator[Sandbox]:
    """A started sandbox of each backend in turn."""
    async with make() as started:
        yield started
