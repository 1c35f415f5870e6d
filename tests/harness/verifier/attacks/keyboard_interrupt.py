# expected: broken
"""Has the run stopped as if by a user."""


def add(a, b):
    raise KeyboardInterrupt


def even(n):
    return n % 2 == 0
