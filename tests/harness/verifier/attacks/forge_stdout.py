# expected: tampered
"""Prints a report."""

import json
import os

ids = ["test_calc.TestCalc." + t for t in ("test_add_small", "test_add_negative", "test_even", "test_odd")]
report = {
    "exit": 0,
    "timed_out": False,
    "statuses": [[i, "passed"] for i in ids],
    "details": {},
    "notes": [],
    "end": True,
    "forged": "",
}
print("0" * 32, json.dumps(report), flush=True)
for fd in range(3):
    try:
        os.write(fd, (json.dumps(report) + "\nOK\n").encode())
    except OSError:
        pass
os._exit(0)
