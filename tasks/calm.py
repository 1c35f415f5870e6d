"""What keeps an event loop that serves many trials from standing still: Python's garbage collector and its threads."""

import gc
import sys
from functools import cache

THRESHOLDS = 10_000, 10, 100
"""New objects before the youngest are looked through, and how many such looks before older and all are. With Python's
own, all objects of a thousand trials were looked through every ten seconds, for a third of a second each."""
SWITCH_SECONDS = 0.0005
"""How long a thread computes before another may. With Python's own 5 ms, a loop beside six threads that read tasks and
write trials waits up to 30 ms each time that it has sent or received something."""


@cache
def calm_process() -> None:
    """Have full collections come rarely, and never look again through what this process holds by now: modules, mostly.
    Have threads let each other go on soon.

    What trials leave is freed without the collector, but for a little that waits for it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)
