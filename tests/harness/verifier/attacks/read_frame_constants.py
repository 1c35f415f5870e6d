# expected: tampered
"""Reads the expected value from the constants of the asserting function."""

import sys


def add(a, b):
    constants = [c for c in sys._getframe(1).f_code.co_consts if type(c) is int]
    return constants[-1]


def even(n):
    return n % 2 == 0
