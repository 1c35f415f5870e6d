"""What the embedded sandbox adds to the kernel's limits: denied system calls, sums over processes, runtime mounts."""

import asyncio
import errno
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.sandbox import (
    ExecResult,
    Sandbox,
    SandboxConfig,
    SandboxUnavailable,
    create_sandbox,
    owner,
    require_isolation,
)
from harness.sandbox.bwrap_seccomp import ABSENT, MACHINES, SYSCALLS, compile_filter


async def python(sandbox: Sandbox, code: str, timeout: float = 60) -> ExecResult:
    return await sandbox.exec(["python3", "-I", "-S", "-c", code], timeout=timeout)


async def run(code: str, config: SandboxConfig | None = None, timeout: float = 60) -> ExecResult:
    async with create_sandbox(config or SandboxConfig()) as sandbox:
        return await python(sandbox, code, timeout)


def verdict(program: bytes, arch: int, number: int, arguments: tuple[int, ...] = ()) -> str:
    """What the kernel would do about a system call, by the rules of classic BPF."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    code = list(struct.iter_unpack("=HBBI", program))
    place = value = 0
    while True:
        operation, true, false, operand = code[place]
        place += 1
        match operation:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, operand)
            case 0x15:
                place += true if value == operand else false
            case 0x35:
                place += true if value >= operand else false
            case 0x45:
                place += true if value & operand else false
            case 0x06:
                return "allow" if operand == 0x7FFF0000 else errno.errorcode[operand & 0xFFFF]
            case _:
                raise AssertionError(f"operation {operation:#x}")


@pytest.mark.parametrize("name", MACHINES)
def test_the_filter_decides_as_its_table_says(name: str) -> None:
    machine = MACHINES[name]
    program = compile_filter(machine)
    denied = {row[machine.column] for row in SYSCALLS.values()}
    absent = {row[machine.column] for row in ABSENT.values()}
    for number in range(480):
        expected = "EPERM" if number in denied else "ENOSYS" if number in absent else "allow"
        if number != machine.socket:
            assert verdict(program, machine.arch, number) == expected, number
    for flags, expected in ((0x11, "allow"), (0x3D0F00, "allow"), (0x10000011, "EPERM"), (0x20000, "EPERM")):
        assert verdict(program, machine.arch, machine.clone, (flags,)) == expected
    for command, expected in ((0x5401, "allow"), (0x5412, "EPERM"), (0x541C, "EPERM")):
        assert verdict(program, machine.arch, machine.ioctl, (1, command)) == expected
    for family, expected in ((1, "allow"), (2, "allow"), (10, "allow"), (40, "EAFNOSUPPORT"), (17, "EAFNOSUPPORT")):
        assert verdict(program, machine.arch, machine.socket, (family,)) == expected
    assert verdict(program, 0x40000003, 1) == "ENOSYS"  # the calls of 32-bit programs have other numbers
    assert verdict(program, machine.arch, 0x40000000 | machine.socket, (40,)) == "ENOSYS"


async def test_denied_calls_fail_and_what_programs_need_works() -> None:
    column = MACHINES[os.uname().machine].column
    denied = {name: row[column] for name, row in SYSCALLS.items() if row[column] is not None}
    absent = {name: row[column] for name, row in ABSENT.items()}
    result = await run(f"""
import ctypes, os, socket, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def failure(number):
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(number, 0, 0, 0, 0, 0, 0) == -1 else 0
print([name for name, number in {denied!r}.items() if failure(number) != {errno.EPERM}])
print([name for name, number in {absent!r}.items() if failure(number) != {errno.ENOSYS}])
thread = threading.Thread(target=print, args=("thread",))
thread.start()
thread.join()
print(subprocess.run(["echo", "child"], capture_output=True, text=True).stdout.strip())
a, b = socket.socketpair()
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
socket.create_server(("::1", 0), family=socket.AF_INET6)
print(socket.getaddrinfo("127.0.0.1", 80)[0][4])
""")
    assert result.stdout.split(b"\n")[:-1] == [b"[]", b"[]", b"thread", b"child", b"('127.0.0.1', 80)"], result.stderr


async def test_memory_of_all_processes_together_is_limited() -> None:
    result = await run(
        """
import os, time
for _ in range(4):
    if os.fork() == 0:
        data = bytearray(os.urandom(1 << 10)) * (60 << 10)
        time.sleep(60)
time.sleep(60)
""",
        SandboxConfig(memory_bytes=128 << 20, total_memory_bytes=200 << 20),
    )
    assert (result.over_limit, result.exit_code, result.timed_out) == ("total_memory_bytes", 137, False)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A folder of the memory controller of cgroup v1, or of v2, in which this process may make groups."""
    groups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    below = groups.get("memory", groups.get("", "/")).lstrip("/")
    folder = Path("/sys/fs/cgroup", "memory" if "memory" in groups else "", below, f"testgrad-tests-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        if not (folder / "memory.limit_in_bytes").exists() and "memory" not in (
            (folder / "cgroup.subtree_control").read_text()
        ):
            pytest.skip("the memory controller of cgroup v2 is not delegated to this process")
        yield folder
        assert [entry.name for entry in folder.iterdir() if entry.is_dir()] == []
    finally:
        folder.rmdir()


async def test_a_cgroup_holds_what_no_process_owns(cgroup: Path) -> None:
    config = SandboxConfig(cgroup=cgroup, total_memory_bytes=64 << 20, tmp_bytes=256 << 20)
    dead = cgroup / f"testgrad-sbx={owner.this_host()}=4194305=long.ago=x"
    dead.mkdir()
    require_isolation(config)
    assert not dead.exists()
    fill = "f = open('/dev/shm/f', 'wb')\nfor _ in range(200): f.write(bytes(1 << 20))"
    result = await run(fill, config.model_copy(update={"file_bytes": 512 << 20}))
    assert (result.over_limit, result.timed_out) == ("total_memory_bytes", False)
    assert result.exit_code != 0
    async with create_sandbox(config) as sandbox:
        result = await python(sandbox, "print(sum(range(10)))")
        assert (result.stdout, result.over_limit) == (b"45\n", "")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.exec(["sleep", "600"], timeout=600), 0.5)


async def test_a_cgroup_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match=r"(?s)sandbox\.cgroup.*Mend"):
        require_isolation(SandboxConfig(cgroup=tmp_path))
    assert list(tmp_path.iterdir()) == []


async def test_memory_that_is_shared_counts_once() -> None:
    result = await run(
        """
import mmap, os, time
data = mmap.mmap(-1, 100 << 20)
for at in range(0, len(data), 4096):
    data[at] = 1
for _ in range(5):
    if os.fork() == 0:
        sum(data[at] for at in range(0, len(data), 4096))
        time.sleep(2)
        os._exit(0)
for _ in range(5):
    os.wait()
""",
        SandboxConfig(total_memory_bytes=300 << 20),
    )
    assert (result.over_limit, result.exit_code) == ("", 0)


FILL = """
import os, mmap, sys, time
way = sys.argv[1]
held = []
os.makedirs("a/b/c", exist_ok=True)
if way == "closed":
    os.chdir("a")
for number in range(20):
    name = f"a/b/c/{number}" if way != "closed" else f"b/{number}"
    with open(name, "wb+") as f:
        f.write(bytes(2 << 20))
        f.flush()
        if way == "open":
            os.unlink(name)
            held.append(os.dup(f.fileno()))
        elif way == "mapped":
            os.unlink(name)
            held.append(mmap.mmap(f.fileno(), 2 << 20))
if way == "closed":
    os.chmod("b", 0)
time.sleep(60)
"""


@pytest.mark.parametrize("way", ["plain", "open", "mapped", "closed"])
async def test_disk_space_of_the_workspace_is_limited_however_it_is_used(way: str) -> None:
    async with create_sandbox(SandboxConfig(workspace_bytes=20 << 20)) as sandbox:
        result = await sandbox.exec(["python3", "-I", "-S", "-c", FILL, way], timeout=60)
        assert (result.over_limit, result.exit_code) == ("workspace_bytes", 137), result.stderr
        # Smaller than a file's limit each, and the next command finds the workspace as it was left.
        assert (await sandbox.exec(["true"], timeout=20)).exit_code == 0


async def test_hard_links_count_once_and_many_files_are_limited() -> None:
    async with create_sandbox(SandboxConfig(workspace_bytes=20 << 20, workspace_files=1000)) as sandbox:
        linked = "import os, time\nopen('f', 'wb').write(bytes(1 << 20))\n" + (
            "for n in range(100): os.link('f', f'l{n}')\ntime.sleep(1.5)"
        )
        result = await python(sandbox, linked)
        assert (result.over_limit, result.exit_code) == ("", 0), result.stderr
        many = "import time\nfor n in range(1100): open(f'f{n}', 'w')\ntime.sleep(60)"
        assert (await python(sandbox, many)).over_limit == "workspace_files"


async def test_folders_deeper_than_can_be_counted_are_too_many() -> None:
    deep = "import os, time\nfor _ in range(500): os.mkdir('d'); os.chdir('d')\ntime.sleep(60)"
    assert (await run(deep)).over_limit == "workspace_files"


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A prepared runtime in a folder that every user can reach."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = Path(name, "agent")
        (folder / "bin").mkdir(parents=True)
        tool = folder / "bin" / "tool"
        tool.write_text("#!/bin/sh\necho ran as $(id -u)\n")
        tool.chmod(0o777)
        yield folder


async def test_a_runtime_is_shown_read_only_and_without_devices_and_set_uid(runtime: Path) -> None:
    (runtime / "root").write_bytes(Path("/bin/true").read_bytes())
    (runtime / "root").chmod(0o6755)
    link = runtime.with_name("link")
    link.symlink_to(runtime)
    async with create_sandbox(SandboxConfig()) as sandbox:
        await sandbox.mount_runtime(link, "/opt/agent")
        result = await sandbox.exec(["/opt/agent/bin/tool"], timeout=20)
        assert result.stdout == b"ran as 1000\n"
        code = "open('/opt/agent/bin/tool', 'a')"
        assert b"Read-only file system" in (await python(sandbox, code)).stderr
        code = "print(next(line.split()[5] for line in open('/proc/self/mountinfo') if ' /opt/agent ' in line))"
        assert {"ro", "nosuid", "nodev"} <= set((await python(sandbox, code)).stdout.decode().strip().split(","))
        assert (await sandbox.read_tree(lambda path, data: False)).seen == set()
    assert sorted(entry.name for entry in runtime.iterdir()) == ["bin", "root"]


@pytest.mark.parametrize(
    "mount",
    ["opt/agent", "/opt/../usr", "/", "/workspace", "/workspace/x", "/usr/lib", "/proc", "/run", "/opt", "/tmp/x"],
)
async def test_a_mount_that_would_hide_something_is_refused(runtime: Path, mount: str) -> None:
    async with create_sandbox(SandboxConfig()) as sandbox:
        with pytest.raises(ValueError, match="mount"):
            await sandbox.mount_runtime(runtime, mount)
        with pytest.raises(ValueError, match="mount"):
            await sandbox.mount_read_only(mount, {})


async def test_a_runtime_that_is_missing_or_closed_is_named(runtime: Path) -> None:
    async with create_sandbox(SandboxConfig()) as sandbox:
        with pytest.raises(ValueError, match="is no folder"):
            await sandbox.mount_runtime(runtime / "none", "/opt/agent")
        runtime.chmod(0o700)
        if os.geteuid() == 0:
            with pytest.raises(ValueError, match="closed to other users"):
                await sandbox.mount_runtime(runtime, "/opt/agent")
        runtime.chmod(0o755)
