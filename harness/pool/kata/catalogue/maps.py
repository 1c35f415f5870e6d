"""Making a new list from old ones."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "maps",
        "squares",
        "return the list of the squares of xs",
        """
        def squares(xs):
            return [x * x for x in xs]
        """,
        ([1, 2, 3], [1, 4, 9]), ([], []), ([0], [0]), ([-2], [4]), ([5, 5], [25, 25]), ([10, 1], [100, 1]),
    ),
    kata(
        "maps",
        "lengths",
        "return the list of the lengths of words",
        """
        def lengths(words):
            return [len(word) for word in words]
        """,
        (['a', 'bb'], [1, 2]), ([], []), ([''], [0]), (['hello'], [5]), (['x', 'y', 'z'], [1, 1, 1]),
        (['four', 'six'], [4, 3]),
    ),
    kata(
        "maps",
        "running_total",
        "return the list of the sums of the first 1, 2, ... elements of xs",
        """
        def running_total(xs):
            result = []
            total = 0
            for x in xs:
                total += x
                result.append(total)
            return result
        """,
        ([1, 2, 3], [1, 3, 6]), ([], []), ([5], [5]), ([1, -1], [1, 0]), ([2, 2, 2], [2, 4, 6]),
        ([10, 0, 5], [10, 10, 15]),
    ),
    kata(
        "maps",
        "differences",
        "return the list of each element of xs minus the one before it",
        """
        def differences(xs):
            return [xs[i] - xs[i - 1] for i in range(1, len(xs))]
        """,
        ([1, 3, 6], [2, 3]), ([5], []), ([], []), ([4, 4], [0]), ([9, 7], [-2]), ([1, 2, 4, 8], [1, 2, 4]),
    ),
    kata(
        "maps",
        "dot",
        "return the sum of the products of the elements of xs and ys at equal positions",
        """
        def dot(xs, ys):
            total = 0
            for i in range(len(xs)):
                total += xs[i] * ys[i]
            return total
        """,
        ([1, 2], [3, 4], 11), ([], [], 0), ([5], [2], 10), ([1, 0], [0, 1], 0), ([2, 3], [4, 5], 23),
        ([1, 1, 1], [1, 2, 3], 6),
    ),
    kata(
        "maps",
        "add_to_all",
        "return the list of xs with n added to each element",
        """
        def add_to_all(xs, n):
            return [x + n for x in xs]
        """,
        ([1, 2], 1, [2, 3]), ([], 4, []), ([0], 5, [5]), ([10, 20], -3, [7, 17]), ([7], 0, [7]),
        ([1, 2, 3], 10, [11, 12, 13]),
    ),
    kata(
        "maps",
        "swap_ends",
        "return xs with its first and last element exchanged",
        """
        def swap_ends(xs):
            return [xs[-1]] + xs[1:-1] + [xs[0]]
        """,
        ([1, 2], [2, 1]), ([1, 2, 3], [3, 2, 1]), (['a', 'b', 'c', 'd'], ['d', 'b', 'c', 'a']),
        ([5, 0, 0, 9], [9, 0, 0, 5]), ([4, 7], [7, 4]), ([1, 2, 3, 4, 5], [5, 2, 3, 4, 1]),
    ),
)
