# expected: failed
"""Turns failures into skips."""

import unittest


class F(Exception):
    def __init__(s, *a):
        raise unittest.SkipTest("x")


unittest.TestCase.failureException = F


def add(a, b):
    return a - b


def even(n):
    return n % 2 == 0
