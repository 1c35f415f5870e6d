"""Duplicates and common elements."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "sets",
        "common",
        "return the elements of xs that are also in ys, in order",
        """
        def common(xs, ys):
            return [x for x in xs if x in ys]
        """,
        ([1, 2, 3], [2, 3, 4], [2, 3]), ([], [1], []), ([1], [], []), ([5, 6], [6, 5], [5, 6]), ([1, 2], [3], []),
        ([4, 1], [1, 9, 8], [1]),
    ),
    kata(
        "sets",
        "only_first",
        "return the elements of xs that are not in ys, in order",
        """
        def only_first(xs, ys):
            result = []
            for x in xs:
                if x not in ys:
                    result.append(x)
            return result
        """,
        ([1, 2, 3], [2], [1, 3]), ([], [1], []), ([1], [], [1]), ([5, 6], [6, 5], []), ([1, 2], [3], [1, 2]),
        ([4, 1], [1, 9, 8], [4]),
    ),
    kata(
        "sets",
        "unique_sorted",
        "return the different elements of xs, sorted",
        """
        def unique_sorted(xs):
            return sorted(set(xs))
        """,
        ([3, 1, 3], [1, 3]), ([], []), ([2], [2]), ([5, 5, 5], [5]), ([9, 8, 7], [7, 8, 9]), ([1, 2, 2, 1], [1, 2]),
    ),
    kata(
        "sets",
        "has_duplicates",
        "return True when some element occurs twice in xs, else False",
        """
        def has_duplicates(xs):
            return len(set(xs)) < len(xs)
        """,
        ([1, 1], True), ([1, 2], False), ([], False), ([7], False), ([3, 4, 5, 3], True), ([0, 1, 2, 3], False),
    ),
    kata(
        "sets",
        "contains_all",
        "return True when every element of ys is in xs, else False",
        """
        def contains_all(xs, ys):
            for y in ys:
                if y not in xs:
                    return False
            return True
        """,
        ([1, 2, 3], [1, 3], True), ([1, 2], [4], False), ([], [], True), ([], [1], False), ([5], [], True),
        ([1, 2], [1, 9], False), ([6, 7], [7, 6], True),
    ),
    kata(
        "sets",
        "count_common",
        "return how many different elements xs and ys have in common",
        """
        def count_common(xs, ys):
            return len(set(xs) & set(ys))
        """,
        ([1, 2], [2, 3], 1), ([], [], 0), ([1, 1], [1], 1), ([4, 5, 6], [6, 5, 4], 3), ([1], [2], 0),
        ([7, 8, 9], [9, 7, 0, 3], 2),
    ),
    kata(
        "sets",
        "first_missing",
        "return the smallest integer from 1 on that is not in xs",
        """
        def first_missing(xs):
            n = 1
            while n in xs:
                n += 1
            return n
        """,
        ([1, 2, 4], 3), ([], 1), ([2, 3], 1), ([1, 2, 3], 4), ([1], 2), ([5, 1, 2, 3], 4),
    ),
)
