# expected: tampered
"""Leaves a process behind that talks on."""

import os

_heard, _say = os.pipe()
if os.fork() == 0:
    fds = [fd for fd in range(3, 20) if fd not in (_heard, _say)]
    while True:
        for fd in fds:
            try:
                os.write(fd, b"x" * 1000 + b"\n")
            except OSError:
                pass
        os.write(_say, b"!")
os.read(_heard, 1)  # the report of an honest run could otherwise be complete before the first word
