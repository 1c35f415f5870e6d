# expected: tampered
"""Leaves with success before a test has run."""

import os

os._exit(0)
