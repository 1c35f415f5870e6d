"""A real Docker engine for tests, with the base image. Without one such tests are skipped, and the summary says why."""

import atexit
import contextlib
import functools
import os
from typing import Any

import pytest

from deployments.docker import daemon
from harness.sandbox import SandboxConfig
from harness.sandbox.docker_config import DockerConfig

skipped: list[str] = []
"""Why tests were skipped, once for each."""


def docker_sandbox(**changes: Any) -> SandboxConfig:
    """The configuration of a `docker` sandbox on an engine that answers; the first call may start it.

    Skips the calling test where that is impossible.
    """
    url, problem = _engine()
    if problem:
        skipped.append(problem)
        pytest.skip(f"no Docker engine, so the docker backend is NOT tested: {problem}")
    docker = changes.pop("docker", DockerConfig())
    return SandboxConfig(backend="docker", docker=docker.model_copy(update={"hosts": _hosts(url, docker)}), **changes)


def _hosts(url: str, docker: DockerConfig) -> Any:
    return docker.hosts or DockerConfig(hosts=[url]).hosts  # type: ignore[arg-type]  (pydantic takes a URL)


@functools.cache
def _engine() -> tuple[str, str]:
    """(URL, what is wrong) of the engine that all tests of this process share; it ends with the process."""
    try:
        import docker

        from deployments.docker import build_base
    except ImportError:
        return "", "the docker package is not installed (pip install 'testgrad[docker]')"
    stack = contextlib.ExitStack()
    try:
        url = stack.enter_context(daemon.engine(install=False))
    except daemon.DaemonError as error:
        return "", str(error).splitlines()[0]
    atexit.register(stack.close)
    os.environ["DOCKER_HOST"] = url
    build_base.build(docker.APIClient(timeout=300, **docker.utils.kwargs_from_env()))
    return url, ""
