"""Driving the command line, and looking for what it leaves behind."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

TESTGRAD = str(Path(sys.executable).with_name("testgrad"))
TESTS = Path(__file__).parent.parent


def command(*arguments: str | Path, root: Path) -> list[str]:
    """The command line of testgrad."""
    return [TESTGRAD, *map(str, arguments), "--root", str(root)]


def environment() -> dict[str, str]:
    """An environment in which the tests' plugin can be imported, and without what this process set for itself."""
    own = ("PREFECT_", "MLFLOW_", "RAY_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return kept | {"PYTHONPATH": str(TESTS), "OMP_WAIT_POLICY": "PASSIVE"}


def testgrad(*arguments: str | Path, root: Path) -> subprocess.CompletedProcess[str]:
    """Run testgrad to its end."""
    return subprocess.run(
        command(*arguments, root=root), env=environment(), capture_output=True, text=True, timeout=500, check=False
    )


def leftovers() -> set[str]:
    """Processes and files that a run makes and must take away again."""
    ours = ("ray::", "raylet", "gcs_server", "VLLM", "bwrap", "prefect.server", "mlflow")
    processes = set()
    for process in psutil.process_iter(["name", "cmdline"]):
        text = f"{process.info['name']} {' '.join(process.info['cmdline'] or [])}"
        if any(name in text for name in ours):
            processes.add(f"process {process.pid} {text[:80]}")
    temporary = {str(path) for path in Path("/tmp").glob("testgrad-*")}
    return processes | temporary | {str(path) for path in Path("/dev/shm").iterdir()}
