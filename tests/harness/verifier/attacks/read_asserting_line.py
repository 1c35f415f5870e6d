# expected: failed
"""Reads the expected value from the source of the asserting line, which lies in no file."""

import sys


def add(a, b):
    import linecache
    import re

    frame = sys._getframe(1)
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return int(re.search(r", (-?\d+)\)$", line.strip()).group(1))


def even(n):
    return n % 2 == 0
