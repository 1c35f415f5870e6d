"""Finding, counting and leaving out elements."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "filters",
        "evens",
        "return the even numbers of xs, in order",
        """
        def evens(xs):
            return [x for x in xs if x % 2 == 0]
        """,
        ([1, 2, 3, 4], [2, 4]), ([], []), ([1, 3], []), ([0, 5], [0]), ([6, 6, 7], [6, 6]), ([-2, -1, 9], [-2]),
    ),
    kata(
        "filters",
        "positives",
        "return the numbers of xs that are greater than zero, in order",
        """
        def positives(xs):
            result = []
            for x in xs:
                if x > 0:
                    result.append(x)
            return result
        """,
        ([1, -2, 3], [1, 3]), ([], []), ([-1, -3], []), ([0, 5], [5]), ([4, 4], [4, 4]), ([-2, 1, 0], [1]),
    ),
    kata(
        "filters",
        "index_of",
        "return the index of the first x in xs, or -1 when there is none",
        """
        def index_of(xs, x):
            for i in range(len(xs)):
                if xs[i] == x:
                    return i
            return -1
        """,
        ([5, 6, 7], 6, 1), ([5, 6, 7], 5, 0), ([5, 6, 7], 7, 2), ([5, 6, 7], 8, -1), ([], 1, -1), ([3, 3], 3, 0),
        ([1, 9, 9], 9, 1),
    ),
    kata(
        "filters",
        "count_item",
        "return how many elements of xs equal x",
        """
        def count_item(xs, x):
            count = 0
            for item in xs:
                if item == x:
                    count += 1
            return count
        """,
        ([1, 2, 1], 1, 2), ([], 5, 0), ([3, 3, 3], 3, 3), ([1, 2, 3], 4, 0), (['a', 'b'], 'b', 1),
        ([0, 7, 7, 7], 7, 3),
    ),
    kata(
        "filters",
        "count_above",
        "return how many elements of xs are greater than limit",
        """
        def count_above(xs, limit):
            return len([x for x in xs if x > limit])
        """,
        ([1, 5, 9], 4, 2), ([], 0, 0), ([3, 3], 3, 0), ([7], 6, 1), ([1, 2, 3, 4], 0, 4), ([-5, -1, 0], -2, 2),
    ),
    kata(
        "filters",
        "any_negative",
        "return True when some element of xs is less than zero, else False",
        """
        def any_negative(xs):
            for x in xs:
                if x < 0:
                    return True
            return False
        """,
        ([1, -2], True), ([], False), ([1, 2], False), ([0], False), ([-1], True), ([5, 0, 3], False),
        ([4, 4, -4, 4], True),
    ),
    kata(
        "filters",
        "without",
        "return the elements of xs that do not equal x, in order",
        """
        def without(xs, x):
            return [item for item in xs if item != x]
        """,
        ([1, 2, 1], 1, [2]), ([], 3, []), ([4, 5], 6, [4, 5]), ([7, 7], 7, []), (['a', 'b'], 'a', ['b']),
        ([0, 1, 2], 1, [0, 2]),
    ),
)
