"""Picking one of a few values."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "choices",
        "bigger",
        "return the larger of a and b",
        """
        def bigger(a, b):
            return a if a > b else b
        """,
        (1, 2, 2), (5, 3, 5), (4, 4, 4), (-1, -2, -1), (0, -7, 0), (-9, 6, 6),
    ),
    kata(
        "choices",
        "smaller",
        "return the smaller of a and b",
        """
        def smaller(a, b):
            if a < b:
                return a
            return b
        """,
        (1, 2, 1), (5, 3, 3), (4, 4, 4), (-1, -2, -2), (0, -7, -7), (-9, 6, -9),
    ),
    kata(
        "choices",
        "clamp",
        "return x, but at least lo and at most hi",
        """
        def clamp(x, lo, hi):
            return max(lo, min(hi, x))
        """,
        (5, 0, 3, 3), (-1, 0, 3, 0), (2, 0, 3, 2), (0, 0, 3, 0), (3, 0, 3, 3), (10, 4, 6, 6), (1, 4, 6, 4),
    ),
    kata(
        "choices",
        "sign",
        "return 1 for positive x, -1 for negative x and 0 for zero",
        """
        def sign(x):
            if x > 0:
                return 1
            if x < 0:
                return -1
            return 0
        """,
        (5, 1), (-3, -1), (0, 0), (1, 1), (-1, -1), (100, 1), (-40, -1),
    ),
    kata(
        "choices",
        "relu",
        "return x when it is positive, else 0",
        """
        def relu(x):
            return max(x, 0)
        """,
        (5, 5), (-3, 0), (0, 0), (1, 1), (-1, 0), (12, 12),
    ),
    kata(
        "choices",
        "passed",
        "return 'pass' when score is at least 50, else 'fail'",
        """
        def passed(score):
            if score >= 50:
                return 'pass'
            return 'fail'
        """,
        (50, 'pass'), (49, 'fail'), (80, 'pass'), (0, 'fail'), (51, 'pass'), (100, 'pass'), (10, 'fail'),
    ),
    kata(
        "choices",
        "biggest_of_three",
        "return the largest of a, b and c",
        """
        def biggest_of_three(a, b, c):
            return max(max(a, b), c)
        """,
        (1, 2, 3, 3), (3, 2, 1, 3), (1, 5, 2, 5), (4, 4, 4, 4), (-1, -2, -3, -1), (-5, -2, -4, -2), (0, -1, 7, 7),
    ),
)
