"""Driving the command line, and looking for what it leaves behind."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from deployments import guardian

TESTGRAD = str(Path(sys.executable).with_name("testgrad"))
TESTS = Path(__file__).parent.parent
MARK = "TESTGRAD_TEST_RUN"
TEMPORARY = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp"))
TEMPORARY.chmod(0o755)  # sandboxes, which have users of their own, must reach their workspaces
"""Where our commands keep temporary files: short, since Ray's sockets live there."""
atexit.register(shutil.rmtree, TEMPORARY, ignore_errors=True)


def command(*arguments: str | Path, root: Path) -> list[str]:
    """The command line of testgrad."""
    return [TESTGRAD, *map(str, arguments), "--root", str(root)]


def environment() -> dict[str, str]:
    """An environment in which the tests' plugin can be imported, and by which the run's processes can be told."""
    own = ("PREFECT_", "MLFLOW_", "RAY_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return kept | {
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(TESTS)]),
        "OMP_WAIT_POLICY": "PASSIVE",
        "TMPDIR": str(TEMPORARY),
        MARK: str(TEMPORARY),
    }


def testgrad(*arguments: str | Path, root: Path) -> subprocess.CompletedProcess[str]:
    """Run testgrad to its end."""
    return subprocess.run(
        command(*arguments, root=root), env=environment(), capture_output=True, text=True, timeout=900, check=False
    )


testgrad.__test__ = False  # type: ignore[attr-defined]  # for pytest, its name begins like a test's


def leftover_processes() -> list[str]:
    """Processes that our commands started, directly or not, and that still live; sandboxes too, which bear no mark."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            ours = f"{TEMPORARY}/" in line or process.environ().get(MARK) == str(TEMPORARY)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {line[:100]}")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def leftover_files() -> list[str]:
    """What our commands left in their temporary folder."""
    return sorted(path.name for path in TEMPORARY.iterdir())


def shared_memory() -> set[str]:
    """Files in shared memory that no living process has mapped: those of others, who test beside us, are in use."""
    return guardian.left_in_shared_memory()


def wait_for(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    """Return once it holds; fail if it does not within so long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.2)
