# expected: broken
"""Never ends."""

while True:
    pass
