"""A command's last words are its own, not those of libraries that are taken apart after it."""

import subprocess
import sys

PROGRAM = """
import atexit, os, sys
from flows.last_words import end_quietly

class Library:
    def __del__(self, write=os.write):
        write(2, b"leaked 514 functions!")

held = Library()
end_quietly()
atexit.register(lambda: print("cleaned up", file=sys.stderr))
print("done", file=sys.stderr)
sys.exit(3)
"""


def test_only_what_comes_after_the_end_is_silenced():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (ended.stderr, ended.returncode) == ("done\ncleaned up\n", 3)
    loud = PROGRAM.replace("end_quietly()\n", "")
    ended = subprocess.run([sys.executable, "-c", loud], capture_output=True, text=True, check=False)
    assert ended.stderr == "done\ncleaned up\nleaked 514 functions!"


def test_output_that_cannot_be_written_is_told_of():
    with open("/dev/full", "w") as full:
        program = "from flows.last_words import end_quietly\nend_quietly()\nprint('a result')"
        ended = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert "No space left on device" in ended.stderr and ended.returncode
