# expected: tampered
"""The same for all functions."""


class E:
    def __eq__(s, o):
        return True

    def __bool__(s):
        return False


def add(a, b):
    return E()


def even(n):
    return E()
