# expected: broken
"""Ends the interpreter politely."""

import sys

sys.exit(0)
