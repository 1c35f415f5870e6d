"""When a command is killed, what it started ends, and what that had in shared memory goes, and nothing else."""

import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from deployments.guardian import SHARED_MEMORY, shared_memory

COMMAND = """
import mmap, multiprocessing, sys, time
from deployments import guardian

def work(name):
    # as an engine does: made where processes are spawned, a semaphore keeps its name until its tracker removes it
    lock = multiprocessing.get_context("spawn").Lock()
    shared = open(f"/dev/shm/{name}", "r+b")
    mapped = mmap.mmap(shared.fileno(), 0)
    print(lock._semlock.name, multiprocessing.current_process().pid, flush=True)
    time.sleep(600)

if __name__ == "__main__":
    guardian.start()
    multiprocessing.get_context("spawn").Process(target=work, args=(sys.argv[1],)).start()
    time.sleep(600)
"""


def test_what_only_the_killed_had_mapped_goes(tmp_path: Path) -> None:
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    ours = multiprocessing.get_context("spawn").Lock()
    shared = SHARED_MEMORY / f"testgrad-test-{os.getpid()}"
    shared.write_bytes(bytes(4096))
    with shared.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)  # by us too, so that it is not only theirs
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    try:
        process = subprocess.Popen(
            [sys.executable, str(script), shared.name], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdout is not None
        name, pid = process.stdout.readline().split()
        semaphore = SHARED_MEMORY / f"sem.{name.removeprefix('/')}"
        inodes = {semaphore.stat().st_ino, shared.stat().st_ino}
        assert inodes <= shared_memory(int(pid))
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 60
        while (psutil.pid_exists(int(pid)) or semaphore.exists()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not psutil.pid_exists(int(pid)) and not semaphore.exists()
        assert shared.exists() and (SHARED_MEMORY / f"sem.{ours._semlock.name.removeprefix('/')}").exists()
    finally:
        mapped.close()
        shared.unlink()


LONG_DEAD = '''
import subprocess, sys, time
from deployments import guardian

CHILD = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
print(flush=True)
sys.stdin.read()
"""

guardian.start()
child = subprocess.Popen(
    [sys.executable, "-c", CHILD, sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
child.stdout.readline()
time.sleep(6 * guardian.LOOK_SECONDS)
child.kill()
child.wait()
'''


def test_what_was_killed_while_the_command_ran_leaves_nothing_either() -> None:
    left = SHARED_MEMORY / f"testgrad-test-left-{os.getpid()}"
    left.write_bytes(bytes(4096))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    try:
        subprocess.run([sys.executable, "-c", LONG_DEAD, str(left)], env=environment, check=True)
        deadline = time.monotonic() + 60
        while left.exists():
            assert time.monotonic() < deadline, "it is still there"
            time.sleep(0.05)
    finally:
        left.unlink(missing_ok=True)
