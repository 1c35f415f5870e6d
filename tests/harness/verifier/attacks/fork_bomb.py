# expected: broken
"""Never ends in ever more processes."""

import os

while True:
    try:
        os.fork()
    except OSError:
        pass
