"""Sums, differences and products of one or two numbers."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "numbers",
        "add",
        "return the sum of a and b",
        """
        def add(a, b):
            return a + b
        """,
        (2, 3, 5), (0, 0, 0), (-1, 4, 3), (7, -2, 5), (10, 15, 25), (-3, -4, -7),
    ),
    kata(
        "numbers",
        "multiply",
        "return the product of a and b",
        """
        def multiply(a, b):
            return a * b
        """,
        (3, 4, 12), (5, 0, 0), (-2, 6, -12), (1, 9, 9), (7, 7, 49), (-3, -5, 15),
    ),
    kata(
        "numbers",
        "double",
        "return twice x",
        """
        def double(x):
            return x * 2
        """,
        (4, 8), (-1, -2), (0, 0), (3, 6), (10, 20), (7, 14),
    ),
    kata(
        "numbers",
        "negate",
        "return minus x",
        """
        def negate(x):
            return -x
        """,
        (3, -3), (-2, 2), (0, 0), (10, -10), (-7, 7), (1, -1),
    ),
    kata(
        "numbers",
        "square",
        "return x squared",
        """
        def square(x):
            return x * x
        """,
        (3, 9), (-4, 16), (0, 0), (1, 1), (10, 100), (5, 25),
    ),
    kata(
        "numbers",
        "absdiff",
        "return the absolute difference of a and b",
        """
        def absdiff(a, b):
            return abs(a - b)
        """,
        (3, 5, 2), (5, 3, 2), (0, 0, 0), (-2, 4, 6), (7, -1, 8), (-5, -3, 2),
    ),
    kata(
        "numbers",
        "average",
        "return the mean of a and b",
        """
        def average(a, b):
            return (a + b) / 2
        """,
        (2, 4, 3), (0, 0, 0), (1, 2, 1.5), (-4, 4, 0), (10, 20, 15), (5, 6, 5.5), (-3, -5, -4),
    ),
)
