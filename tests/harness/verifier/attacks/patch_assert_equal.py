# expected: tampered
"""Replaces one assertion."""

import unittest

unittest.TestCase.assertEqual = lambda *a, **k: None


def add(a, b):
    return a - b


def even(n):
    return n % 2 == 0
