# expected: failed
"""Declares all tests expected failures."""

import unittest

unittest.TestCase.__unittest_expecting_failure__ = True


def add(a, b):
    return a - b


def even(n):
    return n % 2 == 0
