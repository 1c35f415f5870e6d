# expected: tampered
"""The same, through the other operator."""


class E(int):
    def __eq__(s, o):
        return not s != o

    def __ne__(s, o):
        return False

    __hash__ = None


def add(a, b):
    return E(0)


def even(n):
    return n % 2 == 0
