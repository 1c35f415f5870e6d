"""Several raylets on this machine, which stand for nodes."""

import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent


@contextmanager
def raylets(head: dict[str, float], others: Sequence[dict[str, float]]) -> Iterator[tuple[Any, list[Any]]]:
    """A cluster whose head and other nodes have these resources: the cluster, and the others. Its processes find the
    tests' helpers; RAY_AUTH_TOKEN lets this process and its children in."""
    sizes = {"num_cpus": 1, "object_store_memory": 128 * 2**20, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="testgrad-", dir="/tmp") as folder:
        patch.setenv("PYTHONPATH", f"{TESTS}:{TESTS.parent}")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_AUTH_MODE", "token")  # read when Ray is imported
        patch.setenv("RAY_raylet_start_wait_time_s", "240")  # raylets boot slowly on a machine that others use
        patch.setenv("RAY_TMPDIR", folder)
        (Path(folder) / "ray").mkdir()  # where Cluster leaves its address
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"resources": head, **sizes})
        try:
            yield cluster, [cluster.add_node(resources=resources, **sizes) for resources in others]
        finally:
            cluster.shutdown()
