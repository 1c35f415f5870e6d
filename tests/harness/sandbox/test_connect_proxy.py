"""The one way out of a sandbox: its own session's socket, through the forwarder."""

import asyncio
import functools
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from support.scripted import ScriptedPolicy
from support.tiny import tiny_tokenizer

from harness.proxy import doorway
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.proxy.session import Session
from harness.sandbox import ExecResult, Sandbox, SandboxConfig, SandboxError, SandboxUnavailable, create_sandbox
from harness.sandbox.forwarder import PROXY_PORT
from harness.sandbox.leftovers import make_base, remove_base
from trainer.rollout import Sampling

SAMPLING = Sampling(temperature=1.0, top_p=1.0, max_tokens=50)

ASK = """
import http.client, json, sys
def ask(connection, url):
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}]})
    connection.request("POST", url[url.index("/s/"):] + "/chat/completions", body)
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())
def connect(url, timeout=30):
    return http.client.HTTPConnection(url.split("/")[2], timeout=timeout)
"""


@functools.cache
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture
def policy() -> ScriptedPolicy:
    return ScriptedPolicy(tokenizer(), ["bonjour"])


@pytest.fixture
async def proxy(policy: ScriptedPolicy) -> AsyncIterator[ProxyServer]:
    async with ProxyServer(policy, ChatCodec(tokenizer()), 400) as running:
        yield running


async def connect(proxy: ProxyServer, session: Session, sandbox: Sandbox) -> str:
    """The session's URL inside."""
    session.origin = await sandbox.connect_proxy(await proxy.open_socket(session))
    return session.base_url


async def python(sandbox: Sandbox, code: str, *argv: str, timeout: float = 60) -> ExecResult:
    return await sandbox.exec(["python3", "-I", "-S", "-c", code, *argv], timeout=timeout)


async def appears(sandbox: Sandbox, name: str) -> None:
    while name not in (await sandbox.read_tree(lambda path, data: False)).seen:
        await asyncio.sleep(0.02)


@asynccontextmanager
async def serving(
    handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[Path]:
    """A server in place of the proxy, on a socket laid out like a session's."""
    base, lock = make_base(None)
    folder = base / "run"
    folder.mkdir(mode=0o755)
    path = folder / "proxy.sock"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, path)
    path.chmod(0o666)
    try:
        yield path
    finally:
        server.close()
        remove_base(base, lock)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()


NO_FORWARDER = "a pod has no socket and no forwarder inside: see test_kubernetes_tunnel"


async def test_a_command_gets_answers_from_its_session(proxy, policy, sandbox) -> None:
    session = proxy.open_session("s", SAMPLING)
    url = await connect(proxy, session, sandbox)
    assert url.startswith(f"http://127.0.0.1:{PROXY_PORT}/s/")
    assert session.requests == 0  # the check of the connection is no request
    code = ASK + "status, body = ask(connect(sys.argv[1]), sys.argv[1]); print(status, body['choices'][0])"
    for _ in range(2):
        result = await python(sandbox, code, url)
        assert result.stdout.startswith(b"200") and b"bonjour" in result.stdout, result.stderr
    assert session.capture.num_turns == 2 and session.infra_failure is None


@pytest.mark.not_on("kubernetes", NO_FORWARDER)
async def test_the_proxy_is_all_that_can_be_reached(proxy, sandbox) -> None:
    session = proxy.open_session("s", SAMPLING)
    own_port = int(session.origin.rpartition(":")[2])
    await connect(proxy, session, sandbox)
    with socket.create_server(("127.0.0.1", 0)) as loopback, socket.create_server(("0.0.0.0", 0)) as everywhere:
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind(f"\0testgrad-{os.getpid()}")
        abstract.listen()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing; tells the host's own address
            own = probe.getsockname()[0]
        targets = [
            ("127.0.0.1", loopback.getsockname()[1]),
            *((host, everywhere.getsockname()[1]) for host in ("127.0.0.1", own, "0.0.0.0")),
            ("127.0.0.1", own_port),  # the proxy's own port
            ("192.0.2.1", 80),
            ("169.254.169.254", 80),
            ("::1", loopback.getsockname()[1]),
        ]
        code = f"""
import os, socket
def attempt(what, *args):
    try:
        what(*args)
        print("reached", args)
    except OSError:
        pass
for target in {targets!r}:
    attempt(socket.create_connection, target, 2)
attempt(socket.getaddrinfo, "example.org", 80)
attempt(socket.gethostbyname, "localhost.localdomain")
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
attempt(sender.sendto, b"x", ("192.0.2.1", 53))
attempt(socket.socket(socket.AF_UNIX).connect, {abstract.getsockname()!r})
attempt(socket.socket, 40)  # AF_VSOCK leads to the host of a virtual machine, and no namespace holds it
attempt(socket.socket, 17, socket.SOCK_RAW)  # AF_PACKET
attempt(socket.socket, 38)  # AF_ALG
print(socket.if_nameindex(), os.listdir("/run"), os.listdir("/run/testgrad"))
"""
        result = await python(sandbox, code)
        loopback.setblocking(False)
        with pytest.raises(BlockingIOError):
            loopback.accept()
        abstract.close()
    assert result.stdout == b"[(1, 'lo')] ['testgrad'] ['proxy.sock']\n", (result.stdout, result.stderr)
    assert proxy.unauthorized == 0


async def test_another_trials_session_cannot_be_reached(proxy, policy, sandbox) -> None:
    mine, other = proxy.open_session("mine", SAMPLING), proxy.open_session("other", SAMPLING)
    await connect(proxy, mine, sandbox)
    theirs = await proxy.open_socket(other)
    other.origin = mine.origin
    code = ASK + (
        "import os; print(ask(connect(sys.argv[1]), sys.argv[1])[0], os.path.exists(sys.argv[2]));"
        "open('/run/testgrad/x', 'w')"
    )
    result = await python(sandbox, code, other.base_url, str(theirs))
    assert result.stdout == b"401 False\n"
    assert b"Read-only file system" in result.stderr or b"Permission denied" in result.stderr
    assert (proxy.unauthorized, other.requests, policy.calls) == (1, 0, [])


async def test_after_the_end_requests_are_refused_and_counted(proxy, policy, sandbox) -> None:
    session = proxy.open_session("s", SAMPLING)
    url = await connect(proxy, session, sandbox)
    path = await proxy.open_socket(session)
    code = (
        ASK
        + """
import os, socket, time
kept = connect(sys.argv[1])
print(ask(kept, sys.argv[1])[0])
open("asked", "w")
while not os.path.exists("closed"):
    time.sleep(0.02)
print(ask(kept, sys.argv[1])[0])
try:
    ask(connect(sys.argv[1]), sys.argv[1])
except (OSError, http.client.HTTPException):
    print("refused")
try:
    socket.socket(socket.AF_UNIX).connect("/run/testgrad/proxy.sock")
except OSError:
    print("gone")
"""
    )
    command = asyncio.create_task(python(sandbox, code, url))
    await appears(sandbox, "asked")
    await proxy.close_session(session)
    assert not path.exists() and not path.parent.parent.exists()
    await sandbox.write_file("closed", b"")
    assert (await command).stdout.split() == [b"200", b"401", b"refused", b"gone"]
    assert proxy.unauthorized == 1 and session.capture.num_turns == 1
    with pytest.raises(RuntimeError, match="open session"):
        await proxy.open_socket(session)


async def test_hanging_up_stops_the_generation(proxy, policy, sandbox) -> None:
    policy.delay = 60
    session = proxy.open_session("s", SAMPLING)
    url = await connect(proxy, session, sandbox)
    code = (
        ASK
        + """
import time
try:
    ask(connect(sys.argv[1], timeout=3), sys.argv[1])
except TimeoutError:
    open("hung-up", "w")
time.sleep(60)
"""
    )
    command = asyncio.create_task(python(sandbox, code, url))
    await appears(sandbox, "hung-up")
    while policy.running:
        await asyncio.sleep(0.01)
    assert (policy.cancelled, session.cancelled, session.infra_failure) == (1, 1, None)
    command.cancel()
    await asyncio.wait({command})


async def test_a_killed_command_stops_its_generation(proxy, policy, sandbox) -> None:
    policy.delay = 60
    session = proxy.open_session("s", SAMPLING)
    url = await connect(proxy, session, sandbox)
    result = await python(sandbox, ASK + "ask(connect(sys.argv[1], 60), sys.argv[1])", url, timeout=6)
    assert result.timed_out and len(policy.calls) == 1
    while policy.running:
        await asyncio.sleep(0.01)
    assert session.cancelled == 1 and session.infra_failure is None


@pytest.mark.not_on("kubernetes", NO_FORWARDER)
async def test_killing_the_forwarder_is_the_agents_own_doing(proxy, sandbox) -> None:
    session = proxy.open_session("s", SAMPLING)
    url = await connect(proxy, session, sandbox)
    code = (
        ASK
        + """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    if open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")[4:5] == [b"/opt/testgrad/forwarder.py"]:
        os.kill(int(pid), signal.SIGKILL)
        print("killed")
try:
    ask(connect(sys.argv[1]), sys.argv[1])
except OSError:
    print("refused")
"""
    )
    result = await python(sandbox, code, url)
    assert (result.exit_code, result.stdout.split()) == (0, [b"killed", b"refused"]), result
    assert session.infra_failure is None
    again = await python(sandbox, ASK + "print(ask(connect(sys.argv[1]), sys.argv[1])[0])", url)
    assert again.stdout == b"200\n"


async def test_a_command_is_the_same_with_the_forwarder_beside_it(proxy, make, sandbox) -> None:
    await connect(proxy, proxy.open_session("s", SAMPLING), sandbox)

    async def run(*argv: str, stdin: bytes = b"") -> tuple[int, bytes]:
        result = await sandbox.exec(argv, timeout=60, stdin=stdin, env={"X": "1"})
        return result.exit_code, result.stdout

    assert await run("cat", stdin=b"y" * 300_000) == (0, b"y" * 300_000)
    assert await run("sh", "-c", "echo $X; exit 7") == (7, b"1\n")
    assert await run("sh", "-c", "kill -9 $$") == (137, b"")
    assert await run("no-such-program") == (127, b"")
    assert (await run("/usr"))[0] == 126
    code = """
import os, signal
print(len(os.listdir("/proc/self/fd")) - 1)
print(signal.getsignal(signal.SIGTERM), open("/proc/self/status").read().split("SigIgn:")[1].split()[0])
try:
    os.wait()
except ChildProcessError:
    print("childless")
"""
    async with make() as bare:
        expected = (await python(bare, code)).stdout
    assert b"childless" in expected
    assert (await python(sandbox, code)).stdout == expected


@pytest.mark.not_on("kubernetes", NO_FORWARDER)
async def test_large_bodies_and_half_closed_connections_pass_whole(sandbox) -> None:
    async with serving(echo) as path:
        await sandbox.connect_proxy(path)
        code = f"""
import hashlib, os, socket, threading
data = os.urandom(1 << 20) * 20
s = socket.create_connection(("127.0.0.1", {PROXY_PORT}))
def send():
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
got = hashlib.sha256()
while chunk := s.recv(1 << 16):
    got.update(chunk)
print(got.digest() == hashlib.sha256(data).digest())
"""
        assert (await python(sandbox, code)).stdout == b"True\n"


async def test_a_stream_arrives_piece_by_piece(sandbox) -> None:
    async def events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(5):
            request = await reader.readline()  # the next piece is sent only when the one before has arrived
            if not request:
                return
            writer.write(b"data: %d\n\n" % number)
            await writer.drain()

    async with serving(events) as path:
        await sandbox.connect_proxy(path)
        code = f"""
import socket
s = socket.create_connection(("127.0.0.1", {PROXY_PORT}), 20)
stream = s.makefile("rwb")
for _ in range(5):
    stream.write(b"next\\n")
    stream.flush()
    print(stream.readline().decode().strip(), stream.readline().decode().strip())
print(stream.read())
"""
        assert (await python(sandbox, code)).stdout.splitlines() == [*(b"data: %d " % n for n in range(5)), b"b''"]


async def test_more_connections_than_there_are_descriptors_wait_their_turn() -> None:
    async with create_sandbox(SandboxConfig(open_files=64)) as sandbox, serving(echo) as path:
        await sandbox.connect_proxy(path)
        code = f"""
import os, socket
for _ in range(4):
    if os.fork() == 0:
        for _ in range(2):
            sockets = [socket.create_connection(("127.0.0.1", {PROXY_PORT}), 60) for _ in range(20)]
            for number, s in enumerate(sockets):
                s.settimeout(60)
                s.sendall(b"%d\\n" % number)
                if number >= 10:
                    continue
                assert s.makefile("rb").readline() == b"%d\\n" % number
                s.close()
            for number, s in enumerate(sockets[10:], 10):
                assert s.makefile("rb").readline() == b"%d\\n" % number
                s.close()
        os._exit(0)
print([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(4)])
"""
        result = await python(sandbox, code)
        assert result.stdout == b"[0, 0, 0, 0]\n", result.stderr


@pytest.mark.not_on("kubernetes", NO_FORWARDER)
async def test_one_sandbox_cannot_use_up_the_hosts_descriptors(proxy, sandbox, monkeypatch) -> None:
    monkeypatch.setattr(doorway, "MAX_CONNECTIONS", 5)
    session = proxy.open_session("s", SAMPLING)
    url = await connect(proxy, session, sandbox)
    before = len(os.listdir("/proc/self/fd"))
    code = (
        ASK
        + """
import os, socket, time
held = []
for _ in range(30):  # past the forwarder, as an agent may
    s = socket.socket(socket.AF_UNIX)
    s.connect("/run/testgrad/proxy.sock")
    held.append(s)
open("held", "w")
while not os.path.exists("counted"):
    time.sleep(0.02)
for s in held:
    s.close()
print(ask(connect(sys.argv[1]), sys.argv[1])[0])
"""
    )
    command = asyncio.create_task(python(sandbox, code, url))
    await appears(sandbox, "held")
    await asyncio.sleep(0.5)
    open_now = len(os.listdir("/proc/self/fd"))
    await sandbox.write_file("counted", b"")
    result = await command
    assert result.stdout == b"200\n", result.stderr
    assert open_now - before < 5 + 10  # the connections, and the command's own


async def test_a_flood_of_connections_does_not_hold_up_the_proxy(proxy, policy, sandbox) -> None:
    session, other = proxy.open_session("s", SAMPLING), proxy.open_session("other", SAMPLING)
    await connect(proxy, session, sandbox)
    code = """
import os, socket
for _ in range(3):
    os.fork()
open("flooding", "w")
while True:
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect("/run/testgrad/proxy.sock")
    except OSError:
        pass
    s.close()
"""
    command = asyncio.create_task(python(sandbox, code))
    await appears(sandbox, "flooding")
    body = {"messages": [{"role": "user", "content": "hello"}]}
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        for _ in range(3):
            assert (await client.post(f"{other.base_url}/chat/completions", json=body)).status_code == 200
    command.cancel()
    await asyncio.wait({command})
    assert session.infra_failure is None


@pytest.mark.not_on("kubernetes", NO_FORWARDER)
async def test_the_forwarder_ends_with_its_command(proxy, sandbox) -> None:
    await connect(proxy, proxy.open_session("s", SAMPLING), sandbox)
    mark = f"mark-{os.getpid()}-forwarder"
    running = f"""
import os
processes = filter(str.isdigit, os.listdir("/proc"))
print(sum({mark!r}.encode() in open(f"/proc/{{pid}}/cmdline", "rb").read() for pid in processes))
"""
    # init, the command, the forwarder, and in a container the program that keeps the deadline
    assert int((await python(sandbox, running)).stdout) in (3, 4)
    lines = []
    for entry in Path("/proc").iterdir():
        try:
            lines.append((entry / "cmdline").read_bytes())
        except OSError:
            continue
    assert not any(mark.encode() in line for line in lines)


@pytest.mark.not_on("kubernetes", NO_FORWARDER)
async def test_a_proxy_that_does_not_answer_is_the_machines_fault(sandbox) -> None:
    async with serving(echo) as path:
        pass
    base, lock = make_base(None)
    try:
        (base / "run").mkdir(mode=0o755)
        with pytest.raises(SandboxError, match="does not answer"):
            await sandbox.connect_proxy(base / "run" / "proxy.sock")
    finally:
        remove_base(base, lock)
    assert not path.exists()


async def test_the_socket_is_private_until_it_is_shown_and_gone_with_the_server(policy) -> None:
    async with ProxyServer(policy, ChatCodec(tokenizer()), 400) as proxy:
        session = proxy.open_session("s", SAMPLING)
        path = await proxy.open_socket(session)
        assert await proxy.open_socket(session) == path
        assert path.parent.parent.stat().st_mode & 0o777 == 0o700
        assert [entry.name for entry in path.parent.iterdir()] == ["proxy.sock"]
    assert not path.parent.parent.exists()


async def test_a_backend_that_cannot_says_so() -> None:
    sandbox = create_sandbox(SandboxConfig())
    with pytest.raises(SandboxUnavailable, match="bubblewrap"):
        await Sandbox.connect_proxy(sandbox, Path("/x/run/proxy.sock"))
    with pytest.raises(SandboxUnavailable, match="bubblewrap"):
        await Sandbox.mount_runtime(sandbox, Path("/x"), "/opt/agent")
