"""Questions about numbers, answered by True or False."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "predicates",
        "is_even",
        "return True when n is even, else False",
        """
        def is_even(n):
            return n % 2 == 0
        """,
        (4, True), (3, False), (0, True), (1, False), (-2, True), (7, False), (10, True), (9, False),
    ),
    kata(
        "predicates",
        "is_odd",
        "return True when n is odd, else False",
        """
        def is_odd(n):
            return n % 2 == 1
        """,
        (3, True), (4, False), (0, False), (1, True), (-5, True), (8, False), (6, False),
    ),
    kata(
        "predicates",
        "is_positive",
        "return True when x is greater than zero, else False",
        """
        def is_positive(x):
            return x > 0
        """,
        (2, True), (-1, False), (0, False), (1, True), (100, True), (-50, False),
    ),
    kata(
        "predicates",
        "is_multiple",
        "return True when n is a multiple of k, else False",
        """
        def is_multiple(n, k):
            return n % k == 0
        """,
        (6, 3, True), (7, 3, False), (10, 5, True), (9, 2, False), (3, 6, False), (4, 4, True), (5, 2, False),
        (8, 3, False),
    ),
    kata(
        "predicates",
        "between",
        "return True when x is at least lo and at most hi, else False",
        """
        def between(x, lo, hi):
            return lo <= x and x <= hi
        """,
        (5, 1, 10, True), (0, 1, 10, False), (11, 1, 10, False), (1, 1, 10, True), (10, 1, 10, True),
        (-3, -5, -1, True), (2, 3, 4, False),
    ),
    kata(
        "predicates",
        "same_sign",
        "return True when a * b is greater than zero, else False",
        """
        def same_sign(a, b):
            return a * b > 0
        """,
        (2, 3, True), (-2, -3, True), (-2, 3, False), (2, -3, False), (0, 4, False), (5, 0, False), (1, 1, True),
    ),
    kata(
        "predicates",
        "is_teen",
        "return True when age is from 13 to 19, else False",
        """
        def is_teen(age):
            return age >= 13 and age <= 19
        """,
        (13, True), (12, False), (19, True), (20, False), (15, True), (5, False), (40, False), (14, True),
        (18, True),
    ),
)
