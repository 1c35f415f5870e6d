"""Demonstrations: the answers with which an agent would make a task's known fix, said through the real proxy.

A scaffold's demonstrator writes what the policy would have to answer; `Oracle` is the policy that answers so. Such a
trial is a trial like any other: captured, patched and graded, so that only what earned its reward is learnt from.
"""

from harness.demonstrations import edit as _edit  # registers itself
from harness.demonstrations.base import (
    DEMONSTRATORS,
    DemonstrationError,
    demonstrate,
    find_demonstrator,
    register_demonstrator,
)
from harness.demonstrations.oracle import Oracle

__all__ = [
    "DEMONSTRATORS",
    "DemonstrationError",
    "Oracle",
    "demonstrate",
    "find_demonstrator",
    "register_demonstrator",
]

del _edit
