"""A checksum of a tensor's bytes that is the same on every device, and costs little more than reading them.

A row of words of 64 bits, each multiplied by an odd number, is summed modulo 2^64. High bits hardly take part in such a
sum (the signs of two numbers could cancel), so the row is summed a second time, read four bytes later, where what were
high halves are low ones. Both sums of all rows are rows of the next round, until one row is left, whose sums are the
checksum. A change of one bit always shows, whatever its place; of any other change about one in 2^32 would not. It
guards against accidents, not against forgers.
"""

from functools import cache

import numpy as np
import torch

ROW = 1024
"""Words in a row."""
CHUNK = 4096
"""Rows that are summed at once on an accelerator, which wants long calls: 32 MiB."""
HALF = 4
"""Bytes by which the second reading of a row is late."""


@cache
def multipliers() -> tuple[np.ndarray, np.ndarray]:
    """Odd numbers [ROW] and [ROW - 1] for the two readings, the same in every process."""
    words = np.random.Generator(np.random.PCG64(20250131)).integers(0, 2**64, 2 * ROW - 1, dtype=np.uint64)
    return words[:ROW] | np.uint64(1), words[ROW:] | np.uint64(1)


def checksum(tensor: torch.Tensor) -> str:
    """The checksum of a tensor's bytes: 32 hexadecimal digits."""
    return to_text(lazy_checksum(tensor))


def to_text(lazy: torch.Tensor) -> str:
    """The digits of what `lazy_checksum` computed; on an accelerator this waits for it."""
    return "".join(f"{word % 2**64:016x}" for word in lazy.tolist())


def lazy_checksum(tensor: torch.Tensor) -> torch.Tensor:
    """The checksum as two int64 on the tensor's device, where their computation may still be under way."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return _on_cpu(data) if data.device.type == "cpu" else _on_device(data)


def _on_cpu(data: torch.Tensor) -> torch.Tensor:
    # what compiles it takes half a second to be imported
    from trainer.serving.checksum_kernel import checksum_words

    return torch.from_numpy(checksum_words(data.numpy(), *multipliers()).view(np.int64))


def _on_device(data: torch.Tensor) -> torch.Tensor:
    """The same with operations that every device has."""
    words = _row_sums(data)
    while len(words) > 2:
        words = _row_sums(words.view(torch.uint8))
    return words


def _row_sums(data: torch.Tensor) -> torch.Tensor:
    """Two words for each row of the bytes `data`; the last row, if it is short, ends in zeros."""
    whole = len(data) // (8 * ROW) * (8 * ROW)
    sums = [_sum_rows(data[:whole])] if whole else []
    if whole < len(data) or not len(data):
        last = torch.zeros(8 * ROW, dtype=torch.uint8, device=data.device)
        last[: len(data) - whole] = data[whole:]
        sums.append(_sum_rows(last))
    return torch.cat(sums)


def _sum_rows(data: torch.Tensor) -> torch.Tensor:
    first, second = _multipliers_on(data.device)
    sums = []
    for chunk in data.view(-1, 8 * ROW).split(CHUNK):
        late = chunk[:, HALF : HALF - 8].clone(memory_format=torch.contiguous_format).view(torch.int64)
        sums.append(torch.stack([(_words(chunk) * first).sum(1), (late * second).sum(1)], 1))
    return torch.cat(sums).view(-1)


@cache
def _multipliers_on(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = (torch.from_numpy(numbers.view(np.int64)).to(device) for numbers in multipliers())
    return first, second


def _words(data: torch.Tensor) -> torch.Tensor:
    # a tensor inside a buffer may begin where no word does
    return (data if data.storage_offset() % 8 == 0 else data.clone()).view(torch.int64)
