"""The checksum: every change shows, and it is the same on all devices."""

import numpy as np
import pytest
import torch

from trainer.serving import checksum as module
from trainer.serving.checksum import ROW, checksum, multipliers

SIZES = [0, 1, 7, 8, 8 * ROW - 1, 8 * ROW, 8 * ROW + 1, 8 * ROW * (ROW + 1) + 3]
"""Around a word, a row, and a row of rows."""


def some_bytes(size, seed=0):
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", SIZES)
def test_other_devices_compute_the_same(size, monkeypatch):
    data = some_bytes(size)
    here = checksum(data)
    monkeypatch.setattr(module, "CHUNK", 3)
    monkeypatch.setattr(module, "_on_cpu", module._on_device)
    assert checksum(data) == here


def test_the_value_is_fixed():
    """It is journaled, and compared by processes of other versions."""
    assert checksum(torch.arange(5000, dtype=torch.int64)) == "9b391dc50e70db72b34024ba0b5d4d6b"


@pytest.mark.parametrize("size", [s for s in SIZES if s])
def test_any_bit_that_changes_shows(size):
    data = some_bytes(size)
    right = checksum(data)
    places = {0, size - 1, size // 2, *(int(i) for i in torch.randint(0, size, (4,)))}
    for place in places:
        for bit in range(8):
            data[place] ^= 1 << bit
            assert checksum(data) != right, (place, bit)
            data[place] ^= 1 << bit
    assert checksum(data) == right


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_changes_that_could_cancel_show(dtype):
    """Signs of two numbers, an exchange of two numbers, of two rows: high bits and sums alone would not tell."""
    words = 8 * ROW // dtype.itemsize
    tensor = torch.randn(3 * words, generator=torch.Generator().manual_seed(1)).to(dtype)
    for first, second in [(3, 7), (3, 4 + words), (words - 1, 2 * words - 1)]:
        tensor[first], tensor[second] = 1.5, 0.25
        right = checksum(tensor)
        signs = tensor.clone()
        signs[[first, second]] *= -1
        assert checksum(signs) != right
        swapped = tensor.clone()
        swapped[[first, second]] = tensor[[second, first]]
        assert checksum(swapped) != right
    rows = tensor.view(3, words)[[1, 0, 2]].reshape(-1)
    assert checksum(rows) != right
    assert checksum(-tensor) != right


def test_no_two_multipliers_let_high_bits_cancel():
    """In one of the readings it is bit 31 or lower, and moves the sum by 2^31 times a multiplier, up to its sign."""
    kept = np.uint64(2**33 - 1)
    for numbers in multipliers():
        low = numbers & kept
        both = {*low.tolist(), *((~low + np.uint64(1)) & kept).tolist()}
        assert len(both) == 2 * len(numbers)
        assert (numbers % 2 == 1).all()


def test_lost_tensors_show():
    """Zeros, where something else was, and two that were taken for each other."""
    tensor = torch.randn(64, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    assert checksum(torch.zeros_like(tensor)) != checksum(tensor) != checksum(tensor.T)
    assert checksum(tensor[torch.randperm(64, generator=torch.Generator().manual_seed(3))]) != checksum(tensor)


def test_it_is_of_the_bytes_in_their_order_whatever_the_layout():
    tensor = torch.arange(4096.0).view(64, 64)
    assert checksum(tensor.T) == checksum(tensor.T.contiguous()) != checksum(tensor)
    assert checksum(tensor.view(torch.int32)) == checksum(tensor)
    # a place in a buffer where no word begins
    assert checksum(torch.cat([tensor[:1, :1], tensor.view(1, -1)], 1)[0, 1:]) == checksum(tensor)
