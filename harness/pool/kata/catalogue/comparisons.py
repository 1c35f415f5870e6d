"""True or False, from one comparison."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "comparisons",
        "is_zero",
        "return True when n is zero",
        """
        def is_zero(n):
            return n == 0
        """,
        (4, False), (0, True), (-3, False), (7, False), (10, False), (1, False),
    ),
    kata(
        "comparisons",
        "is_negative",
        "return True when x is less than zero",
        """
        def is_negative(x):
            return x < 0
        """,
        (4, False), (0, False), (-3, True), (7, False), (10, False), (1, False),
    ),
    kata(
        "comparisons",
        "is_equal",
        "return True when a equals b",
        """
        def is_equal(a, b):
            return a == b
        """,
        (2, 3, False), (5, 1, False), (-4, 2, False), (0, 7, False), (9, 9, True), (10, -3, False), (4, 4, True),
    ),
    kata(
        "comparisons",
        "is_different",
        "return True when a is not equal to b",
        """
        def is_different(a, b):
            return a != b
        """,
        (2, 3, True), (5, 1, True), (-4, 2, True), (0, 7, True), (9, 9, False), (10, -3, True), (4, 4, False),
    ),
    kata(
        "comparisons",
        "is_greater",
        "return True when a is greater than b",
        """
        def is_greater(a, b):
            return a > b
        """,
        (2, 3, False), (5, 1, True), (-4, 2, False), (0, 7, False), (9, 9, False), (10, -3, True),
    ),
    kata(
        "comparisons",
        "is_less",
        "return True when a is less than b",
        """
        def is_less(a, b):
            return a < b
        """,
        (2, 3, True), (5, 1, False), (-4, 2, True), (0, 7, True), (9, 9, False), (10, -3, False),
    ),
    kata(
        "comparisons",
        "at_least",
        "return True when x is at least limit",
        """
        def at_least(x, limit):
            return x >= limit
        """,
        (2, 3, False), (5, 1, True), (-4, 2, False), (0, 7, False), (9, 9, True), (10, -3, True),
    ),
    kata(
        "comparisons",
        "at_most",
        "return True when x is at most limit",
        """
        def at_most(x, limit):
            return x <= limit
        """,
        (2, 3, True), (5, 1, False), (-4, 2, True), (0, 7, True), (9, 9, True), (10, -3, False),
    ),
    kata(
        "comparisons",
        "both",
        "return True when a and b are true",
        """
        def both(a, b):
            return a and b
        """,
        (True, True, True), (True, False, False), (False, True, False), (False, False, False), (0, 3, 0),
        (5, 7, 7),
    ),
    kata(
        "comparisons",
        "either",
        "return True when a or b is true",
        """
        def either(a, b):
            return a or b
        """,
        (True, True, True), (True, False, True), (False, True, True), (False, False, False), (0, 3, 3), (5, 7, 5),
    ),
    kata(
        "comparisons",
        "opposite",
        "return not a",
        """
        def opposite(a):
            return not a
        """,
        (True, False), (False, True), (0, True), (1, False), ('', True), ('x', False),
    ),
    kata(
        "comparisons",
        "contains",
        "return True when x is in xs",
        """
        def contains(xs, x):
            return x in xs
        """,
        ([1, 2, 3], 2, True), ([4, 5], 9, False), ([], 1, False), ([7, 7, 8], 7, True), ([0, 1], 0, True),
        ([3], 4, False),
    ),
    kata(
        "comparisons",
        "lacks",
        "return True when x is not in xs",
        """
        def lacks(xs, x):
            return x not in xs
        """,
        ([1, 2, 3], 2, False), ([4, 5], 9, True), ([], 1, True), ([7, 7, 8], 7, False), ([0, 1], 0, False),
        ([3], 4, True),
    ),
)
