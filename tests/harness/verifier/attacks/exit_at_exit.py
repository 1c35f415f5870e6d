# expected: failed
"""Turns the exit code into success at the end."""

import atexit
import os

atexit.register(os._exit, 0)


def add(a, b):
    return a - b


def even(n):
    return n % 2 == 0
