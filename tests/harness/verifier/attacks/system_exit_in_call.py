# expected: failed
"""Ends the interpreter politely in the middle of a test."""

import sys


def add(a, b):
    sys.exit(0)


def even(n):
    return n % 2 == 0
