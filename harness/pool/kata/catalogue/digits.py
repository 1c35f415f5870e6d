"""Digits and divisors of whole numbers."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "digits",
        "digit_sum",
        "return the sum of the decimal digits of n",
        """
        def digit_sum(n):
            total = 0
            while n > 0:
                total += n % 10
                n = n // 10
            return total
        """,
        (123, 6), (0, 0), (7, 7), (10, 1), (999, 27), (505, 10),
    ),
    kata(
        "digits",
        "count_digits",
        "return the number of decimal digits of n",
        """
        def count_digits(n):
            return len(str(n))
        """,
        (123, 3), (0, 1), (7, 1), (10, 2), (99999, 5), (4040, 4),
    ),
    kata(
        "digits",
        "last_digit",
        "return the last decimal digit of n",
        """
        def last_digit(n):
            return n % 10
        """,
        (123, 3), (0, 0), (7, 7), (10, 0), (1999, 9), (58, 8),
    ),
    kata(
        "digits",
        "first_digit",
        "return the first decimal digit of n",
        """
        def first_digit(n):
            while n >= 10:
                n = n // 10
            return n
        """,
        (123, 1), (0, 0), (7, 7), (10, 1), (987, 9), (58, 5), (11, 1),
    ),
    kata(
        "digits",
        "gcd",
        "return the greatest common divisor of a and b",
        """
        def gcd(a, b):
            while b > 0:
                a, b = (b, a % b)
            return a
        """,
        (12, 8, 4), (7, 3, 1), (10, 5, 5), (9, 0, 9), (6, 18, 6), (100, 75, 25),
    ),
    kata(
        "digits",
        "count_divisors",
        "return how many of the integers from 1 to n divide n",
        """
        def count_divisors(n):
            count = 0
            for d in range(1, n + 1):
                if n % d == 0:
                    count += 1
            return count
        """,
        (1, 1), (2, 2), (6, 4), (7, 2), (12, 6), (9, 3),
    ),
    kata(
        "digits",
        "is_prime",
        "return True when n is a prime number, else False",
        """
        def is_prime(n):
            for d in range(2, n):
                if n % d == 0:
                    return False
            return n > 1
        """,
        (2, True), (3, True), (4, False), (1, False), (0, False), (7, True), (9, False), (15, False), (13, True),
    ),
)
