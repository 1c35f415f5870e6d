"""Whole tensors out of ZeRO-3 shards, under the names that a checkpoint of the model has."""

from collections.abc import Iterator
from typing import Any

import torch


def full_tensors(engine: Any, dtype: torch.dtype, bucket_bytes: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight, gathered and cast; tied ones under each of their names.

    A collective: all ranks must read it to its end. At most one bucket of gathered weights exists at a time.
    """
    import deepspeed

    for bucket in _buckets(engine.module, bucket_bytes):
        with deepspeed.zero.GatheredParameters([parameter for _, parameter in bucket], modifier_rank=None):
            gathered = [(name, parameter.detach().to("cpu", dtype, copy=True)) for name, parameter in bucket]
        yield from gathered


def largest_tensor_bytes(engine: Any, dtype: torch.dtype) -> int:
    """Bytes of the largest weight, cast to `dtype`."""
    return max(_numel(parameter) for parameter in engine.module.parameters()) * dtype.itemsize


def _buckets(module: torch.nn.Module, bucket_bytes: int) -> Iterator[list[tuple[str, torch.nn.Parameter]]]:
    bucket: list[tuple[str, torch.nn.Parameter]] = []
    size = 0
    # remove_duplicate=False: an engine may keep its own packed copy of a tied tensor; it must be sent under both names
    for name, parameter in module.named_parameters(remove_duplicate=False):
        nbytes = _numel(parameter) * parameter.element_size()
        if bucket and size + nbytes > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, parameter))
        size += nbytes
    if bucket:
        yield bucket


def _numel(parameter: torch.nn.Parameter) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))
