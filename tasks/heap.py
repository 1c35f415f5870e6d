"""Pauses of the garbage collector, in processes whose event loop serves many trials."""

import gc
from functools import cache

THRESHOLDS = 10_000, 10, 100
"""New objects before the youngest are looked through, and how many such looks before older and all are. With Python's
own, all objects of a thousand trials were looked through every ten seconds, for a third of a second each."""


@cache
def calm_collector() -> None:
    """Have full collections come rarely, and never look again through what this process holds by now: modules, mostly.

    What trials leave is freed without the collector, but for a little that waits for it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
