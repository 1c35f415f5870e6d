"""The kata pool, built once for all tests of the harness."""

import pytest

from harness.pool.kata import PoolPaths, build_pool


@pytest.fixture(scope="session")
def kata_pool(tmp_path_factory: pytest.TempPathFactory) -> PoolPaths:
    """The whole pool with the default settings; read it, never write to it."""
    return build_pool(tmp_path_factory.mktemp("pool") / "kata")
