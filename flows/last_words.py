"""What a command's process says at its very end: nothing."""

import atexit
import os
import sys


def end_quietly() -> None:
    """Silence stderr once all that was registered from now on to run at the end has run.

    What is left then is the interpreter, which takes itself apart. A library that Transformers imports (Triton) would
    print pages about what is still held.
    """
    atexit.register(_silence)


def _silence() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
