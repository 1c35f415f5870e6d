# expected: broken
"""Prints without end."""

while True:
    print("x" * 100000)
