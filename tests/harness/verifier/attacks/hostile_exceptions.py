# expected: failed
"""Raises what neither is an Exception nor can be shown."""


class Hostile(BaseException):
    def __str__(self):
        raise Hostile

    __repr__ = __str__


def add(a, b):
    raise Hostile


def even(n):
    return n % 2 == 0
