"""Lists, with one call or one index."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "collections",
        "second",
        "return the second element of xs",
        """
        def second(xs):
            return xs[1]
        """,
        ([1, 5, 2], 5), ([7, 3], 3), ([3, 4, 8, 9], 4), (['a', 'b'], 'b'), ([0, 9], 9), ([6, 6, 1], 6),
    ),
    kata(
        "collections",
        "size",
        "return the number of elements of xs",
        """
        def size(xs):
            return len(xs)
        """,
        ([1, 5, 2], 3), ([7], 1), ([3, 3, 4, 8], 4), ([-2, -7], 2), ([0, 9, 1, 4, 6], 5), ([10, 20], 2), ([], 0),
    ),
    kata(
        "collections",
        "sum_of",
        "return the sum of xs",
        """
        def sum_of(xs):
            return sum(xs)
        """,
        ([1, 5, 2], 8), ([7], 7), ([3, 3, 4, 8], 18), ([-2, -7], -9), ([0, 9, 1, 4, 6], 20), ([10, 20], 30),
        ([], 0),
    ),
    kata(
        "collections",
        "largest",
        "return the largest element of xs",
        """
        def largest(xs):
            return max(xs)
        """,
        ([1, 5, 2], 5), ([7], 7), ([3, 3, 4, 8], 8), ([-2, -7], -2), ([0, 9, 1, 4, 6], 9), ([10, 20], 20),
    ),
    kata(
        "collections",
        "in_order",
        "return xs sorted",
        """
        def in_order(xs):
            return sorted(xs)
        """,
        ([1, 5, 2], [1, 2, 5]), ([7], [7]), ([3, 3, 4, 8], [3, 3, 4, 8]), ([-2, -7], [-7, -2]),
        ([0, 9, 1, 4, 6], [0, 1, 4, 6, 9]), ([10, 20], [10, 20]), ([], []),
    ),
    kata(
        "collections",
        "append_item",
        "return xs with x added at the end",
        """
        def append_item(xs, x):
            return xs + [x]
        """,
        ([1, 2, 3], 2, [1, 2, 3, 2]), ([4, 5], 9, [4, 5, 9]), ([], 1, [1]), ([7, 7, 8], 7, [7, 7, 8, 7]),
        ([0, 1], 0, [0, 1, 0]), ([3], 4, [3, 4]),
    ),
    kata(
        "collections",
        "put_first",
        "return xs with x added at the front",
        """
        def put_first(xs, x):
            return [x] + xs
        """,
        ([1, 2, 3], 2, [2, 1, 2, 3]), ([4, 5], 9, [9, 4, 5]), ([], 1, [1]), ([7, 7, 8], 7, [7, 7, 7, 8]),
        ([0, 1], 0, [0, 0, 1]), ([3], 4, [4, 3]),
    ),
    kata(
        "collections",
        "count_of",
        "return how often x occurs in xs",
        """
        def count_of(xs, x):
            return xs.count(x)
        """,
        ([1, 2, 3], 2, 1), ([4, 5], 9, 0), ([], 1, 0), ([7, 7, 8], 7, 2), ([0, 1], 0, 1), ([3], 4, 0),
    ),
    kata(
        "collections",
        "position",
        "return the index of x in xs",
        """
        def position(xs, x):
            return xs.index(x)
        """,
        ([1, 2, 3], 2, 1), ([4, 5], 4, 0), ([7, 7, 8], 8, 2), ([0, 1], 1, 1), ([9], 9, 0), ([3, 1, 2], 3, 0),
    ),
    kata(
        "collections",
        "without_first",
        "return xs without its first element",
        """
        def without_first(xs):
            return xs[1:]
        """,
        ([1, 5, 2], [5, 2]), ([7], []), ([3, 3, 4, 8], [3, 4, 8]), ([-2, -7], [-7]),
        ([0, 9, 1, 4, 6], [9, 1, 4, 6]), ([10, 20], [20]),
    ),
    kata(
        "collections",
        "without_last",
        "return xs without its last element",
        """
        def without_last(xs):
            return xs[:-1]
        """,
        ([1, 5, 2], [1, 5]), ([7], []), ([3, 3, 4, 8], [3, 3, 4]), ([-2, -7], [-2]),
        ([0, 9, 1, 4, 6], [0, 9, 1, 4]), ([10, 20], [10]),
    ),
    kata(
        "collections",
        "is_empty",
        "return True when xs has no elements",
        """
        def is_empty(xs):
            return len(xs) == 0
        """,
        ([1, 5, 2], False), ([7], False), ([3, 3, 4, 8], False), ([-2, -7], False), ([0, 9, 1, 4, 6], False),
        ([10, 20], False), ([], True),
    ),
    kata(
        "collections",
        "range_to",
        "return the list of the integers from 0 up to n, without n",
        """
        def range_to(n):
            return list(range(n))
        """,
        (0, []), (1, [0]), (3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (2, [0, 1]), (7, [0, 1, 2, 3, 4, 5, 6]),
    ),
)
