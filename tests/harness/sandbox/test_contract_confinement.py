"""What a command can see, reach and use up, whatever the backend."""

import os
import socket
from typing import Any

import pytest
from support.sandboxes import Make

from harness.sandbox import ExecResult, Sandbox


async def run_python(sandbox: Sandbox, code: str, timeout: float = 20.0) -> ExecResult:
    return await sandbox.exec(["python3", "-I", "-S", "-c", code], timeout=timeout)


async def run(make: Make, code: str, **changes: Any) -> ExecResult:
    async with make(**changes) as sandbox:
        return await run_python(sandbox, code)


async def test_no_connection_to_the_host_and_no_names(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = await run(
            make,
            f"""
import socket
for attempt in (lambda: socket.create_connection(("127.0.0.1", {port}), 2),
                lambda: socket.create_connection(("192.0.2.1", 80), 2),
                lambda: socket.getaddrinfo("example.org", 80)):
    try:
        attempt()
        print("reached")
    except OSError:
        print("refused")
""",
        )
    assert result.stdout.split() == [b"refused"] * 3


async def test_other_sandboxes_are_invisible(make: Make) -> None:
    async with make() as one, make() as other:
        await other.write_file("theirs", b"x")
        result = await run_python(one, "import os; print(os.listdir('/tmp'), os.listdir('/workspace'))")
    assert result.stdout.strip() == b"[] []"


async def test_only_its_own_processes_are_visible(make: Make) -> None:
    result = await run(make, "import os; print(max(int(n) for n in os.listdir('/proc') if n.isdigit()))")
    assert int(result.stdout) < 20


async def test_system_is_read_only(make: Make) -> None:
    result = await run(
        make,
        """
for name in ("/x", "/usr/x", "/etc/x", "/dev/x", "/bin/x", "/proc/sys/kernel/hostname", "/usr/bin/env"):
    try:
        open(name, "a").close()
        print("wrote", name)
    except OSError:
        pass
""",
    )
    assert (result.exit_code, result.stdout) == (0, b"")


@pytest.mark.not_on("kubernetes", "a fake node takes capabilities in another way; the manifest is looked at")
async def test_no_capabilities_and_no_further_namespaces(make: Make) -> None:
    result = await run(
        make,
        """
import ctypes
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["CapEff"], 16), int(status["CapBnd"], 16), status["NoNewPrivs"].strip())
print(ctypes.CDLL(None).unshare(0x10000000))
""",
    )
    assert result.stdout.split() == [b"0", b"0", b"1", b"-1"]


async def test_environment_and_descriptors_do_not_leak(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    leaked = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        result = await run(make, "import os; print(sorted(os.environ), len(os.listdir('/proc/self/fd')) - 1)")
    finally:
        os.close(leaked)
    assert b"A_SECRET" not in result.stdout
    assert result.stdout.split()[-1] == b"3"


async def test_memory_limit(make: Make) -> None:
    result = await run(make, "x = bytearray(256 << 20)", memory_bytes=128 << 20)
    assert result.exit_code == 1
    assert b"MemoryError" in result.stderr


@pytest.mark.not_on("kubernetes", "a pod counts by user, some of its own processes too: test_kubernetes_exec")
async def test_process_limit(make: Make) -> None:
    result = await run(
        make,
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
        processes=16,
    )
    assert 4 < int(result.stdout) < 16


@pytest.mark.not_on("kubernetes", "the fake cluster's node bounds no volume; the manifest is looked at")
async def test_file_size_limit_and_tmp_limit(make: Make) -> None:
    result = await run(
        make,
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
        file_bytes=1 << 20,
        tmp_bytes=1 << 20,
    )
    assert result.stdout.split() == [b"27", b"wrote", b"/tmp/a", b"28", b"wrote", b"/dev/shm/c", b"28"]


async def test_cpu_limit(make: Make) -> None:
    result = await run(make, "while True: pass", cpu_seconds=1)
    assert not result.timed_out
    assert result.exit_code in (128 + 9, 128 + 24)
