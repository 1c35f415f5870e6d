# expected: failed
"""Looks for the nonce in the other processes, and leaves with success as soon as it can read one of them.

Command lines are open to all and hold nothing; of the runner's memory and descriptors nothing may be readable.
"""

import os

for pid in [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]:
    with open(f"/proc/{pid}/cmdline", "rb") as stream:
        if b"runner.py" not in stream.read() or int(pid) != os.getppid():
            continue
    for name in ("mem", "environ", "maps"):
        try:
            with open(f"/proc/{pid}/{name}", "rb"):
                os._exit(0)
        except OSError:
            pass
    try:
        os.listdir(f"/proc/{pid}/fd")
        os._exit(0)
    except OSError:
        pass


def add(a, b):
    return a - b


def even(n):
    return n % 2 == 0
