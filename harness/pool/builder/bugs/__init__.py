"""Kinds of bugs, each a change to the syntax tree. A kind of one's own is a generator under `register_bug`."""

from harness.pool.builder.bugs import conditions as _conditions  # noqa: F401  (registers its bugs)
from harness.pool.builder.bugs import definitions as _definitions  # noqa: F401
from harness.pool.builder.bugs import exceptions as _exceptions  # noqa: F401
from harness.pool.builder.bugs import expressions as _expressions  # noqa: F401
from harness.pool.builder.bugs import loops as _loops  # noqa: F401
from harness.pool.builder.bugs import statements as _statements  # noqa: F401
from harness.pool.builder.bugs.base import BUGS, DOUBLE, Bug, Change, Place, register_bug

__all__ = ["BUGS", "DOUBLE", "Bug", "Change", "Place", "register_bug"]
