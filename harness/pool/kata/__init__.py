"""The built-in pool: small pure functions, each broken in several proven ways."""

from harness.pool.kata.build import PoolPaths, build_pool

__all__ = ["PoolPaths", "build_pool"]
