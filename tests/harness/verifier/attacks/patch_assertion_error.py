# expected: failed
"""Replaces the exception that means failure."""

import builtins

builtins.AssertionError = type("A", (BaseException,), {})


def add(a, b):
    return a - b


def even(n):
    return n % 2 == 0
