# expected: tampered
"""Reports one test as passed before the runner does, then lets it go on."""

import json
import os

for fd in range(3, 20):
    try:
        os.write(fd, (json.dumps(["test", "test_calc.TestCalc.test_add_small", "passed", ""]) + "\n").encode())
    except OSError:
        pass


def add(a, b):
    return a - b


def even(n):
    return n % 2 == 0
