# expected: tampered
"""Writes messages to every descriptor of every process."""

import json
import os

ids = ["test_calc.TestCalc." + t for t in ("test_add_small", "test_add_negative", "test_even", "test_odd")]
lines = "".join(json.dumps(["test", i, "passed", ""]) + "\n" for i in ids) + json.dumps(["end", "", "", ""]) + "\n"
for pid in sorted(p for p in os.listdir("/proc") if p.isdigit()):
    try:
        fds = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        continue
    for fd in fds:
        try:
            target = os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
            os.write(target, lines.encode())
        except OSError:
            pass
os._exit(0)
