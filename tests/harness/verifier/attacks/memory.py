# expected: broken
"""Takes all memory."""

x = []
while True:
    x.append(bytearray(1 << 24))
