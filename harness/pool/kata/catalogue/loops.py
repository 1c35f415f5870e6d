"""Counting loops."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "loops",
        "factorial",
        "return the factorial of n",
        """
        def factorial(n):
            result = 1
            for i in range(1, n + 1):
                result *= i
            return result
        """,
        (5, 120), (0, 1), (1, 1), (3, 6), (4, 24), (6, 720),
    ),
    kata(
        "loops",
        "sum_to",
        "return the sum of the integers from 1 to n",
        """
        def sum_to(n):
            result = 0
            for i in range(1, n + 1):
                result += i
            return result
        """,
        (3, 6), (0, 0), (1, 1), (4, 10), (10, 55), (5, 15),
    ),
    kata(
        "loops",
        "fib",
        "return the n-th Fibonacci number, where fib(0) is 0 and fib(1) is 1",
        """
        def fib(n):
            a = 0
            b = 1
            for i in range(n):
                a, b = (b, a + b)
            return a
        """,
        (10, 55), (0, 0), (1, 1), (2, 1), (3, 2), (7, 13),
    ),
    kata(
        "loops",
        "product",
        "return the product of all elements of xs",
        """
        def product(xs):
            result = 1
            for x in xs:
                result *= x
            return result
        """,
        ([2, 3], 6), ([], 1), ([5], 5), ([1, 2, 3, 4], 24), ([-1, 7], -7), ([4, 0, 2], 0),
    ),
    kata(
        "loops",
        "count_down",
        "return the list of the integers from n down to 1",
        """
        def count_down(n):
            result = []
            while n > 0:
                result.append(n)
                n -= 1
            return result
        """,
        (3, [3, 2, 1]), (0, []), (1, [1]), (2, [2, 1]), (5, [5, 4, 3, 2, 1]), (4, [4, 3, 2, 1]),
    ),
    kata(
        "loops",
        "multiples",
        "return the list of the first n multiples of k, starting with k",
        """
        def multiples(k, n):
            return [k * i for i in range(1, n + 1)]
        """,
        (3, 2, [3, 6]), (5, 3, [5, 10, 15]), (2, 0, []), (1, 4, [1, 2, 3, 4]), (10, 1, [10]), (4, 4, [4, 8, 12, 16]),
    ),
    kata(
        "loops",
        "power",
        "return base to the power of n, for n at least 0",
        """
        def power(base, n):
            result = 1
            for i in range(n):
                result *= base
            return result
        """,
        (2, 3, 8), (5, 0, 1), (7, 1, 7), (3, 2, 9), (10, 4, 10000), (-2, 3, -8),
    ),
)
