"""The checksum on a CPU, compiled: both readings in one pass over memory. See `checksum`, which says what it is."""

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def checksum_words(data: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The checksum of bytes as two words of 64 bits.

    `first` [words] and `second` [words - 1] multiply the words of a row in its two readings.
    """
    row = 8 * len(first)
    while True:
        whole = len(data) // row
        rest = data[whole * row :]
        sums = np.empty((max(whole + (len(rest) > 0), 1), 2), np.uint64)
        _sum_rows(data[: whole * row].view(np.uint32).reshape(whole, row // 4), first, second, sums)
        if whole < len(sums):
            last = np.zeros(row, np.uint8)
            last[: len(rest)] = rest
            _sum_rows(last.view(np.uint32).reshape(1, row // 4), first, second, sums[whole:])
        if len(sums) == 1:
            return sums[0]
        data = sums.reshape(-1).view(np.uint8)


@njit(nogil=True, cache=True)
def _sum_rows(halves: np.ndarray, first: np.ndarray, second: np.ndarray, sums: np.ndarray) -> None:
    """Two sums into `sums` [rows, 2] for each row of `halves` [rows, 2 x words]: lower and higher halves of words."""
    shift, last = np.uint64(32), len(second)
    for row in range(len(halves)):
        early = late = np.uint64(0)
        for word in range(last):
            low, high = np.uint64(halves[row, 2 * word]), np.uint64(halves[row, 2 * word + 1])
            early += (low | high << shift) * first[word]
            late += (high | np.uint64(halves[row, 2 * word + 2]) << shift) * second[word]
        low, high = np.uint64(halves[row, 2 * last]), np.uint64(halves[row, 2 * last + 1])
        sums[row, 0], sums[row, 1] = early + (low | high << shift) * first[last], late
