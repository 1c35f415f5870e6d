# expected: broken
"""Stops the trusted process."""

import os
import signal

os.kill(os.getppid(), signal.SIGSTOP)


def add(a, b):
    return a - b


def even(n):
    return n % 2 == 0
