"""A checksum of a tensor's bytes that is the same on every device, and about as fast as reading them.

Words of 64 bits are spread (a word's high bits fold into its low ones), multiplied by fixed odd numbers and summed
modulo 2^64, row by row, and the rows' sums again, until one number is left. A change of one bit always shows, whatever
its place; of any other change about one in 2^30 would not. It guards against accidents, not against forgers.
"""

from functools import lru_cache

import numpy as np
import torch

ROW = 1024
"""Words in a row."""
CHUNK = 32
"""Rows that are spread at once on the CPU: few enough to stay in its cache."""
DEVICE_CHUNK = 4096
"""The same on other devices, which want long calls: 32 MiB."""
SHIFT = 29
LOW = 2 ** (64 - SHIFT) - 1


@lru_cache(maxsize=1)
def multipliers() -> np.ndarray:
    """Odd numbers [ROW], the same in every process."""
    words = np.random.Generator(np.random.PCG64(20250131)).integers(0, 2**64, ROW, dtype=np.uint64)
    return words | np.uint64(1)


def checksum(tensor: torch.Tensor) -> int:
    """The checksum of a tensor's bytes, from 0 to 2^64 - 1."""
    return to_int(lazy_checksum(tensor))


def to_int(lazy: torch.Tensor) -> int:
    """The number that `lazy_checksum` computed; on an accelerator this waits for it."""
    return int(lazy.item()) % 2**64


def lazy_checksum(tensor: torch.Tensor) -> torch.Tensor:
    """The checksum as an int64 scalar on the tensor's device, where its computation may still be under way."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words = _row_sums(data)
    while len(words) > 1:
        words = _row_sums(words.view(torch.uint8))
    return words[0]


def _row_sums(data: torch.Tensor) -> torch.Tensor:
    """One word for each row of the bytes `data`; the last row, if it is short, ends in zeros."""
    whole = len(data) // (8 * ROW) * (8 * ROW)
    sums = [_sum_rows(data[:whole])] if whole else []
    if whole < len(data) or not len(data):
        last = torch.zeros(8 * ROW, dtype=torch.uint8, device=data.device)
        last[: len(data) - whole] = data[whole:]
        sums.append(_sum_rows(last))
    return torch.cat(sums)


def _sum_rows(data: torch.Tensor) -> torch.Tensor:
    if data.device.type == "cpu":
        return _sum_rows_numpy(data)
    return _sum_rows_torch(data)


def _sum_rows_numpy(data: torch.Tensor) -> torch.Tensor:
    rows = data.numpy().view(np.uint64).reshape(-1, ROW)
    sums = np.empty(len(rows), np.uint64)
    scratch = np.empty((CHUNK, ROW), np.uint64)
    for start in range(0, len(rows), CHUNK):
        chunk = rows[start : start + CHUNK]
        spread = np.right_shift(chunk, np.uint64(SHIFT), out=scratch[: len(chunk)])
        np.bitwise_xor(spread, chunk, out=spread)
        np.einsum("ij,j->i", spread, multipliers(), out=sums[start : start + CHUNK])
    return torch.from_numpy(sums.view(np.int64))


def _sum_rows_torch(data: torch.Tensor) -> torch.Tensor:
    """The same with operations that every device has; torch's words are signed, so the shift needs a mask."""
    rows = _words(data).view(-1, ROW)
    factors = torch.from_numpy(multipliers().view(np.int64)).to(data.device)
    sums = [((chunk ^ ((chunk >> SHIFT) & LOW)) * factors).sum(1) for chunk in rows.split(DEVICE_CHUNK)]
    return torch.cat(sums)


def _words(data: torch.Tensor) -> torch.Tensor:
    # a tensor inside a buffer may begin where no word does
    return (data if data.storage_offset() % 8 == 0 else data.clone()).view(torch.int64)
