# expected: failed
"""Leaves a process behind that holds all pipes."""

import os
import time

if os.fork() == 0:
    os.setsid()
    time.sleep(600)


def add(a, b):
    return a - b


def even(n):
    return n % 2 == 0
