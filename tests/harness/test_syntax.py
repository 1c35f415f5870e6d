"""Parsing in threads."""

import ast
import gc
import sys
from concurrent.futures import ThreadPoolExecutor

from harness import syntax

SOURCE = "".join(
    f"class T{i}:\n    def test_{i}(self):\n        x = [a for a in range({i}) if (lambda y: y + {i})(a)]\n"
    for i in range(60)
)


class Slow:
    """One of a cycle, which the collector takes so long to free that another thread gets its turn."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        for _ in range(200):
            pass


def parse_beside_a_busy_collector(_):
    expected = ast.dump(syntax.parse("x"))
    for _ in range(40):
        for _ in range(50):
            Slow()
        assert ast.dump(syntax.parse("x")) == expected
        assert len(syntax.parse(SOURCE).body) == 60


def test_threads_that_parse_at_once_all_get_their_trees():
    before = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(300)
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(parse_beside_a_busy_collector, range(4)))
    finally:
        gc.set_threshold(*before[0])
        sys.setswitchinterval(before[1])
