# expected: tampered
"""Leaves with success in the middle of a test."""

import os


def add(a, b):
    os._exit(0)


def even(n):
    return n % 2 == 0
