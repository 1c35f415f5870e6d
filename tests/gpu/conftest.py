"""Tests that need a GPU: they are skipped, and say so, where there is none."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.tiny import tiny_model

from trainer.placement import ray_cluster


def missing() -> str | None:
    """Why these tests cannot run here."""
    if not torch.cuda.is_available():
        return "no GPU: torch.cuda.is_available() is false"
    if not torch.distributed.is_nccl_available():
        return "no NCCL: this torch was built without it"
    try:
        from vllm.platforms import current_platform
    except ImportError as error:
        return f"no vLLM: {error}"
    return None if current_platform.is_cuda() else "vLLM is built for another platform; install the extra `gpu`"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    reason = missing() if here else None
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A private Ray cluster with this machine's GPUs."""
    with ray_cluster():
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model."""
    return tiny_model(tmp_path_factory.mktemp("model") / "tied")
