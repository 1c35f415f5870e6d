"""Arithmetic of one expression."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "arithmetic",
        "subtract",
        "return a minus b",
        """
        def subtract(a, b):
            return a - b
        """,
        (2, 3, -1), (5, 1, 4), (-4, 2, -6), (0, 7, -7), (9, 9, 0), (10, -3, 13),
    ),
    kata(
        "arithmetic",
        "triple",
        "return three times x",
        """
        def triple(x):
            return x * 3
        """,
        (4, 12), (0, 0), (-3, -9), (7, 21), (10, 30), (1, 3),
    ),
    kata(
        "arithmetic",
        "add_one",
        "return x plus one",
        """
        def add_one(x):
            return x + 1
        """,
        (4, 5), (0, 1), (-3, -2), (7, 8), (10, 11), (1, 2),
    ),
    kata(
        "arithmetic",
        "minus_one",
        "return x minus one",
        """
        def minus_one(x):
            return x - 1
        """,
        (4, 3), (0, -1), (-3, -4), (7, 6), (10, 9), (1, 0),
    ),
    kata(
        "arithmetic",
        "half",
        "return x divided by two",
        """
        def half(x):
            return x / 2
        """,
        (4, 2.0), (0, 0.0), (-3, -1.5), (7, 3.5), (10, 5.0), (1, 0.5),
    ),
    kata(
        "arithmetic",
        "cube",
        "return x times x times x",
        """
        def cube(x):
            return x * x * x
        """,
        (4, 64), (0, 0), (-3, -27), (7, 343), (10, 1000), (1, 1),
    ),
    kata(
        "arithmetic",
        "add_three",
        "return the sum of a, b and c",
        """
        def add_three(a, b, c):
            return a + b + c
        """,
        (1, 2, 3, 6), (0, 0, 5, 5), (-1, 4, 2, 5), (7, 8, 9, 24), (10, -3, 2, 9), (3, 3, 3, 9),
    ),
    kata(
        "arithmetic",
        "divide",
        "return a divided by b",
        """
        def divide(a, b):
            return a / b
        """,
        (2, 3, 0.6666666666666666), (5, 1, 5.0), (4, 2, 2.0), (7, 7, 1.0), (9, 4, 2.25),
        (10, 6, 1.6666666666666667),
    ),
    kata(
        "arithmetic",
        "remainder",
        "return the remainder of a divided by b",
        """
        def remainder(a, b):
            return a % b
        """,
        (7, 3, 1), (10, 5, 0), (9, 4, 1), (3, 8, 3), (20, 6, 2), (11, 2, 1),
    ),
)
