"""Parts and properties of sequences."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "sequences",
        "take",
        "return the first n elements of xs",
        """
        def take(xs, n):
            return xs[:n]
        """,
        ([1, 2, 3], 2, [1, 2]), ([1, 2], 0, []), ([], 3, []), ([5, 6], 5, [5, 6]), (['a', 'b', 'c'], 1, ['a']),
        ([4, 3, 2, 1], 3, [4, 3, 2]),
    ),
    kata(
        "sequences",
        "drop",
        "return xs without its first n elements",
        """
        def drop(xs, n):
            return xs[n:]
        """,
        ([1, 2, 3], 2, [3]), ([1, 2], 0, [1, 2]), ([], 3, []), ([5, 6], 5, []), (['a', 'b', 'c'], 1, ['b', 'c']),
        ([4, 3, 2, 1], 3, [1]),
    ),
    kata(
        "sequences",
        "rotate",
        "return xs with its first element moved to the end",
        """
        def rotate(xs):
            return xs[1:] + xs[:1]
        """,
        ([1, 2, 3], [2, 3, 1]), ([], []), ([5], [5]), (['a', 'b'], ['b', 'a']), ([4, 3, 2, 1], [3, 2, 1, 4]),
        ([0, 0, 1], [0, 1, 0]),
    ),
    kata(
        "sequences",
        "every_other",
        "return the elements of xs at positions 0, 2, 4 and so on",
        """
        def every_other(xs):
            return xs[::2]
        """,
        ([1, 2, 3], [1, 3]), ([], []), ([5], [5]), (['a', 'b'], ['a']), ([4, 3, 2, 1], [4, 2]),
        ([0, 1, 0, 1, 1], [0, 0, 1]),
    ),
    kata(
        "sequences",
        "is_sorted",
        "return True when no element of xs is less than the one before it, else False",
        """
        def is_sorted(xs):
            for i in range(1, len(xs)):
                if xs[i] < xs[i - 1]:
                    return False
            return True
        """,
        ([1, 2, 3], True), ([], True), ([5], True), ([2, 1], False), ([1, 1], True), ([1, 3, 2], False),
        ([3, 1, 2], False),
    ),
    kata(
        "sequences",
        "spread",
        "return the largest element of xs minus the smallest",
        """
        def spread(xs):
            return max(xs) - min(xs)
        """,
        ([1, 5, 2], 4), ([3], 0), ([-1, 1], 2), ([10, 4], 6), ([7, 7], 0), ([0, 9, 8], 9),
    ),
    kata(
        "sequences",
        "second_largest",
        "return the second largest element of xs",
        """
        def second_largest(xs):
            return sorted(xs)[-2]
        """,
        ([1, 5, 2], 2), ([3, 4], 3), ([9, 8, 7, 6], 8), ([0, -1], -1), ([4, 4, 1], 4), ([2, 10, 6, 1, 3], 6),
    ),
)
