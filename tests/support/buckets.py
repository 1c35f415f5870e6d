"""A replica's end of shared memory, without a replica."""

from typing import Any

import torch

from trainer.serving.buckets import SharedReader, TensorRecord, parse_records


def read_bucket(path: str, size: int, fields: list[dict[str, Any]]) -> list[tuple[TensorRecord, torch.Tensor]]:
    """Tensors of a bucket with their records, each checked and copied out."""
    records = parse_records(fields)
    tensors = SharedReader(path, size).read_all(records)
    return [(record, tensor.clone()) for record, (_, tensor) in zip(records, tensors, strict=True)]
