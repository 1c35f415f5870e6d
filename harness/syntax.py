"""Python's parser, for processes in which several threads parse."""

import ast
import threading

_ONE_AT_A_TIME = threading.RLock()
"""Python 3.11 counts the depth of all trees that are being built together: one that is built while the collector lets
another thread build its own fails with SystemError (github.com/python/cpython/issues/106905). Reentrant, since the
collector may run anything."""


def parse(source: str | bytes) -> ast.Module:
    """`ast.parse`, right in threads too.

    Raises:
        SyntaxError: it is no Python.
        ValueError: it holds null bytes, or is in an encoding that does not exist.
        RecursionError: it is nested too deeply.
    """
    with _ONE_AT_A_TIME:
        return ast.parse(source)
