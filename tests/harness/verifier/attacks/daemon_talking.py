# expected: tampered
"""Leaves a process behind that talks on."""

import os

if os.fork() == 0:
    while True:
        for fd in range(3, 20):
            try:
                os.write(fd, b"x" * 1000 + b"\n")
            except OSError:
                pass
