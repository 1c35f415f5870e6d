"""Checksums are computed where tensors lie, and are the same there."""

import pytest
import torch

from trainer.serving.checksum import checksum


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(1,), (513, 1025), (4096, 4096)])
def test_a_gpu_computes_the_same_checksum(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape).to(dtype)
    assert checksum(tensor.cuda()) == checksum(tensor)
    changed = tensor.cuda()
    changed.view(-1)[-1] += 1
    assert checksum(changed) != checksum(tensor)
