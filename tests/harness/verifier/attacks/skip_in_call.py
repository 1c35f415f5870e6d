# expected: failed
"""Has the tests skipped."""

import unittest


def add(a, b):
    raise unittest.SkipTest("x")


def even(n):
    return n % 2 == 0
