"""The basics of lists."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "lists",
        "first",
        "return the first element of xs",
        """
        def first(xs):
            return xs[0]
        """,
        ([1, 2, 3], 1), ([7], 7), (['a', 'b'], 'a'), ([0, 5], 0), ([-1, -2], -1), ([4, 3, 2, 1], 4),
    ),
    kata(
        "lists",
        "last",
        "return the last element of xs",
        """
        def last(xs):
            return xs[-1]
        """,
        ([1, 2, 3], 3), ([7], 7), (['a', 'b'], 'b'), ([5, 0], 0), ([-1, -2], -2), ([4, 3, 2, 1], 1),
    ),
    kata(
        "lists",
        "length",
        "return the number of elements of xs",
        """
        def length(xs):
            n = 0
            for x in xs:
                n += 1
            return n
        """,
        ([1, 2], 2), ([], 0), ([5], 1), (['a', 'b', 'c'], 3), ([0, 0, 0, 0], 4), ([9, 8, 7, 6, 5], 5),
    ),
    kata(
        "lists",
        "maximum",
        "return the largest element of xs",
        """
        def maximum(xs):
            best = xs[0]
            for x in xs:
                if x > best:
                    best = x
            return best
        """,
        ([1, 5, 2], 5), ([-3, -1], -1), ([4], 4), ([9, 2, 3], 9), ([1, 2, 3], 3), ([0, 0], 0),
    ),
    kata(
        "lists",
        "minimum",
        "return the smallest element of xs",
        """
        def minimum(xs):
            return min(xs)
        """,
        ([3, 1, 2], 1), ([-3, -1], -3), ([4], 4), ([9, 2, 3], 2), ([1, 2, 3], 1), ([5, 0], 0),
    ),
    kata(
        "lists",
        "total",
        "return the sum of xs",
        """
        def total(xs):
            result = 0
            for x in xs:
                result += x
            return result
        """,
        ([1, 2, 3], 6), ([], 0), ([5], 5), ([-1, 1], 0), ([10, 20, 30], 60), ([2, 2, 2, 2], 8),
    ),
    kata(
        "lists",
        "mean",
        "return the arithmetic mean of xs",
        """
        def mean(xs):
            return sum(xs) / len(xs)
        """,
        ([1, 2, 3], 2), ([4], 4), ([1, 2], 1.5), ([-2, 2], 0), ([10, 20, 30, 40], 25), ([5, 5, 5], 5),
    ),
)
