"""The program that runs inside a pod for the host: standard library only, Python >= 3.9.

    python3 -I -S -B -c SOURCE NAME       process 1 of the container NAME; see `be_init`
    python3 -I -S -B -c BOOT LENGTH       one operation; SOURCE and the job come by stdin

A job and an answer are a packet: eight bytes of length, a JSON object, and whatever the object announces. Lengths are
told because the exec stream cannot close stdin alone.

In the containers of commands this program shares its user with hostile code. It makes itself unreadable to it
(PR_SET_DUMPABLE), so that neither its memory nor its descriptors can be opened; being killed or stopped by it cannot be
helped, and is seen by the host as an answer that does not come.
"""

import base64
import ctypes
import errno
import hashlib
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

CONTROL = "/run/testgrad"
"""Folder of the pipes through which the keeper tells the other containers to kill all that runs in them."""

BOOT = "import sys;exec(compile(sys.stdin.buffer.read(int(sys.argv[1])),'inside','exec'))"
TIMED_OUT = 124

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 16
_PAUSE = 0.01  # seconds between reads of what nobody keeps: the writer then blocks, not this program
_DRAIN = 2.0
_MAX_CONNECTIONS = 256
_SWEEP = 5.0
_SCRATCH = ("/tmp", "/dev/shm")
_PR_SET_DUMPABLE = 4
_INSIDERS_DOING = (
    *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
    *(errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG, errno.ENOTEMPTY, errno.ETXTBSY),
)
"""Errors that hostile code can bring about by what it puts into the workspace."""


class Refused(Exception):
    """Something in the workspace is not as the operation needs it; hostile code can cause it."""


# --- process 1 ---


def be_init(name: str) -> None:
    """Reap orphans, and kill every other process of the container whenever a byte arrives in the control pipe.

    Nothing inside can kill or stop a process 1, and kill(-1) reaches all others at once, so this ends even what kills
    whatever the host starts. The keeper makes the pipes; to others their folder is read-only. A byte of hostile code's
    own kills hostile code.
    """
    hide()
    if name == "keeper":
        for other in ("commands", "readonly"):
            os.mkfifo(f"{CONTROL}/{other}", 0o600)
        pipe = -1
    else:
        pipe = open_pipe(f"{CONTROL}/{name}")
    woken = wake_on_child()
    while True:
        ready = select.select([woken, *([pipe] if pipe >= 0 else [])], [], [], 60.0)[0]
        if pipe in ready:
            os.read(pipe, _CHUNK)
            kill_all()
        if woken in ready:
            os.read(woken, _CHUNK)
        reap()


def open_pipe(path: str) -> int:
    """The pipe at `path`, as soon as it is there; open for writing too, so that it never ends."""
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            time.sleep(0.02)


def wake_on_child() -> int:
    """A descriptor that becomes readable whenever a child ends."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


# --- killing ---


def kill_all() -> None:
    """SIGKILL for every process of the container but process 1 and this one; one call, so no fork escapes it."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def sweep() -> "list[int]":
    """Kill everything else in the container and empty its scratch folders; the processes that survived."""
    end = time.monotonic() + _SWEEP
    while True:
        kill_all()
        left = others()
        if not left or time.monotonic() > end:
            break
        time.sleep(0.005)
    for folder in _SCRATCH:
        try:
            fd = os.open(folder, _DIRECTORY)
        except OSError:
            continue
        try:
            clear_folder(fd)
        finally:
            os.close(fd)
    return left


def others() -> "list[int]":
    """Processes of the container that live, without process 1 and this one."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state = file.read().rpartition(b")")[2].split()[0]
            except (OSError, IndexError):
                continue
            if state not in (b"Z", b"X"):
                found.append(int(name))
    return found


def hide() -> None:
    """Keep other processes of this user from reading this one's memory and descriptors."""
    if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_DUMPABLE) failed")


# --- operations ---


def op_hello(job: "dict[str, Any]", stdin: BinaryIO) -> "tuple[dict[str, Any], list[bytes]]":
    return {"python": sys.executable, "version": list(sys.version_info[:2]), "uid": os.getuid()}, []


def op_others(job: "dict[str, Any]", stdin: BinaryIO) -> "tuple[dict[str, Any], list[bytes]]":
    return {"left": others()}, []


def op_sweep(job: "dict[str, Any]", stdin: BinaryIO) -> "tuple[dict[str, Any], list[bytes]]":
    return {"left": sweep()}, []


def op_kill(job: "dict[str, Any]", stdin: BinaryIO) -> "tuple[dict[str, Any], list[bytes]]":
    """In the keeper: make process 1 of another container kill all that runs there; whether there is one."""
    end = time.monotonic() + 1.0
    while True:
        try:
            fd = os.open(f"{CONTROL}/{job['container']}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.ENOENT):
                raise
            if time.monotonic() > end:  # it is only just starting, or dead
                return {"told": False}, []
            time.sleep(0.05)
            continue
        os.write(fd, b"k")
        os.close(fd)
        return {"told": True}, []


def op_reach(job: "dict[str, Any]", stdin: BinaryIO) -> "tuple[dict[str, Any], list[bytes]]":
    """Which of the given addresses and the API server's can be reached from this pod."""
    targets = [tuple(target) for target in job["targets"]]
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        targets.append((os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ.get("KUBERNETES_SERVICE_PORT", "443"))))
    reached = []
    for host, port in targets:
        try:
            socket.create_connection((host, port), 2.0).close()
        except ConnectionRefusedError:
            reached.append(f"{host}:{port} (which refused)")
        except OSError:
            continue
        else:
            reached.append(f"{host}:{port}")
    return {"reached": reached}, []


def op_run(job: "dict[str, Any]", stdin: BinaryIO) -> "tuple[dict[str, Any], list[bytes]]":
    """Run a command to its end or its deadline, then kill everything else in the container."""
    data = stdin.read(job["stdin"])
    ends = [os.pipe() for _ in range(3)]
    woken = wake_on_child()
    child = os.fork()
    if child == 0:
        become(job, ends)
    (feed_inside, feed), (out, out_inside), (err, err_inside) = ends
    for fd in (feed_inside, out_inside, err_inside):
        os.close(fd)
    status, kept, truncated = attend(child, woken, feed, [out, err], data, job["timeout"], job["output_bytes"])
    left = sweep()
    timed_out = status is None
    if status is None:
        code = TIMED_OUT
    else:
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    answer = {"exit": code, "timed_out": timed_out, "truncated": truncated, "left": left}
    return {**answer, "out": len(kept[0]), "err": len(kept[1])}, [bytes(kept[0]), bytes(kept[1])]


def become(job: "dict[str, Any]", ends: "list[tuple[int, int]]") -> None:
    """In the child: lower the limits and become the command, in a session and a process group of its own."""
    code = 126
    try:
        os.setsid()
        for target, fd in enumerate((ends[0][0], ends[1][1], ends[2][1])):
            os.dup2(fd, target)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        for name, value in job["limits"].items():
            limit = getattr(resource, name)
            resource.setrlimit(limit, (value, value))
        try:
            os.chdir(job["cwd"])
        except OSError:
            os.write(2, f"no such folder: {job['cwd']}\n".encode(errors="surrogateescape"))
            os._exit(126)
        os.execvpe(job["argv"][0], job["argv"], job["env"])
    except FileNotFoundError:
        code = 127
        os.write(2, f"{job['argv'][0]}: not found\n".encode(errors="surrogateescape"))
    except BaseException as error:
        os.write(2, f"{error}\n".encode(errors="surrogateescape"))
    finally:
        os._exit(code)


def attend(
    child: int, woken: int, feed: int, outs: "list[int]", data: bytes, timeout: float, limit: int
) -> "tuple[int | None, list[bytearray], bool]":
    """Feed the child and keep the first `limit` bytes of each output until it ends, or kill it at its deadline.

    Returns its wait status (None if it was killed), what was kept, and whether that is not all.
    """
    end = time.monotonic() + timeout
    kept = [bytearray(), bytearray()]
    open_outs = {outs[0]: kept[0], outs[1]: kept[1]}
    left = memoryview(data)
    for fd in (feed, *outs):
        os.set_blocking(fd, False)
    status: int | None = None
    truncated = over = False
    pause = 0.0
    while open_outs or not over:
        if feed >= 0 and (over or not left):
            os.close(feed)
            feed = -1
        time.sleep(pause)
        pause = 0.0
        wait = max(0.0, end - time.monotonic())
        readable, writable, _ = select.select([woken, *open_outs], [feed] if feed >= 0 else [], [], wait)
        if woken in readable:
            os.read(woken, _CHUNK)
        pid, code = (0, 0) if over else os.waitpid(child, os.WNOHANG)
        if over and time.monotonic() >= end:
            break  # somebody holds the pipes who cannot be killed
        if pid or time.monotonic() >= end:
            over, status = True, code if pid else None
            kill_all()
            if not pid:
                os.waitpid(child, 0)
            end = time.monotonic() + _DRAIN
        for fd in open_outs.keys() & set(readable):
            part = os.read(fd, _CHUNK)
            room = limit - len(open_outs[fd])
            open_outs[fd] += part[:room]
            if len(part) > room:
                truncated, pause = True, _PAUSE
            if not part:
                os.close(fd)
                del open_outs[fd]
        if writable and feed >= 0:
            left = feed_some(feed, left)
    return status, kept, truncated


def feed_some(feed: int, left: memoryview) -> memoryview:
    """Write a part of `left`; what is left then, which is nothing if the child has closed its input."""
    try:
        return left[os.write(feed, left[:_CHUNK]) :]
    except BlockingIOError:
        return left
    except OSError:
        return left[:0]


# --- files: as harness/sandbox/tree.py, through open folders and never through a link ---


def op_write(job: "dict[str, Any]", stdin: BinaryIO) -> "tuple[dict[str, Any], list[bytes]]":
    """Make the entries [kind, path, size or target, executable] below `root`; the files' contents follow the job."""
    root = os.open(job["root"], _DIRECTORY)
    with Folders(root, stdin) as folders:
        for kind, path, value, executable in job["entries"]:
            *parents, name = path.split("/")
            if kind == "folder":
                folders.open([*parents, name], create=True)
                continue
            data = folders.content(value) if kind == "file" else b""
            folder = folders.open(parents, create=kind != "gone")
            keeps = executable is None and is_executable(folder, name)
            remove(folder, name)
            if kind == "link":
                os.symlink(value, name, dir_fd=folder)
            elif kind == "file":
                fd = os.open(name, _CREATE, 0o755 if executable or keeps else 0o644, dir_fd=folder)
                try:
                    os.fchmod(fd, 0o755 if executable or keeps else 0o644)
                    while data:
                        data = data[os.write(fd, data) :]
                finally:
                    os.close(fd)
    return {}, []


class Folders:
    """Opens folders below `root` link by link, and reads contents off `stdin`: all of them, whatever goes wrong."""

    def __init__(self, root: int, stdin: BinaryIO) -> None:
        self.root = root
        self.stdin = stdin
        self.current = -1
        self.parts: list[str] = []

    def __enter__(self) -> "Folders":
        return self

    def __exit__(self, *_: object) -> None:
        if self.current >= 0:
            os.close(self.current)
        os.close(self.root)

    def content(self, size: int) -> bytes:
        data = self.stdin.read(size)
        if len(data) != size:
            raise EOFError("the input ended early")
        return data

    def open(self, parts: "list[str]", create: bool) -> int:
        """A descriptor of the folder at `parts`, valid until the next call."""
        if self.current >= 0 and parts == self.parts:
            return self.current
        here = os.dup(self.root)
        try:
            for part in parts:
                if create:
                    try:
                        os.mkdir(part, 0o755, dir_fd=here)
                    except FileExistsError:
                        pass
                try:
                    below = os.open(part, _DIRECTORY, dir_fd=here)
                except OSError as error:
                    raise Refused(f"{'/'.join(parts)}: {part!r} is no folder ({error.strerror})") from error
                os.close(here)
                here = below
        except BaseException:
            os.close(here)
            raise
        if self.current >= 0:
            os.close(self.current)
        self.current, self.parts = here, list(parts)
        return here


def op_look(job: "dict[str, Any]", stdin: BinaryIO) -> "tuple[dict[str, Any], list[bytes]]":
    """Whether the image has a folder at `path`."""
    return {"folder": os.path.isdir(job["path"])}, []


def op_read(job: "dict[str, Any]", stdin: BinaryIO) -> "tuple[dict[str, Any], list[bytes]]":
    """Content of one regular file."""
    *parents, name = job["path"].split("/")
    with Folders(os.open("/workspace", _DIRECTORY), stdin) as folders:
        data = read_regular(folders.open(parents, create=False), name, job["max_bytes"])
    return {"size": len(data)}, [data]


def op_tree(job: "dict[str, Any]", stdin: BinaryIO) -> "tuple[dict[str, Any], list[bytes]]":
    """All entries of the workspace, in the order of the walk, with the contents of files that the host lacks.

    Entries are [kind, base64 of the path, ...]: "link", target; "special"; "odd" (an unprintable path); "deep";
    "closed", reason; "big", size; "file", size, hash, whether the content follows; "unsent", size. At `max_files` or
    `max_total_bytes` the walk ends.
    """
    known = set(json.loads(stdin.read(job["known"])))
    walk = Walk(job, known)
    root = os.open("/workspace", _DIRECTORY)
    try:
        walk.folder(root, b"", 0)
    finally:
        os.close(root)
    return {"entries": walk.entries, "overflow": walk.overflow}, walk.contents


class Walk:
    def __init__(self, job: "dict[str, Any]", known: "set[str]") -> None:
        self.job, self.known = job, known
        self.entries: list[list[Any]] = []
        self.contents: list[bytes] = []
        self.overflow = ""
        self.count = self.total = self.sent = 0

    def folder(self, fd: int, prefix: bytes, depth: int) -> None:
        with os.scandir(fd) as entries:  # never a list of all: there may be millions
            for entry in entries:
                if self.overflow:
                    return
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # gone meanwhile
                if entry.name in self.job["pruned"] and stat.S_ISDIR(status.st_mode):
                    continue
                self.count += 1
                if self.count > self.job["max_files"]:
                    self.overflow = f"more than {self.job['max_files']} files"
                    return
                self.entry(fd, entry.name, prefix + os.fsencode(entry.name), status, depth)

    def entry(self, fd: int, name: str, path: bytes, status: os.stat_result, depth: int) -> None:
        if not os.fsdecode(path).isprintable():
            self.add("odd", path)
        elif stat.S_ISDIR(status.st_mode):
            if depth + 1 > self.job["max_depth"]:
                self.add("deep", path)
            else:
                self.subfolder(fd, name, path, depth + 1)
        elif stat.S_ISLNK(status.st_mode):
            target = os.fsencode(os.readlink(name, dir_fd=fd))
            self.add("link", path, base64.b64encode(target).decode())
        elif stat.S_ISREG(status.st_mode):
            self.regular(fd, name, path, status.st_size)
        else:
            self.add("special", path)

    def subfolder(self, fd: int, name: str, path: bytes, depth: int) -> None:
        make_accessible(fd, name)
        try:
            below = os.open(name, _DIRECTORY, dir_fd=fd)
        except OSError as error:
            self.add("closed", path, str(error.strerror))
            return
        try:
            self.folder(below, path + b"/", depth)
        finally:
            os.close(below)

    def regular(self, fd: int, name: str, path: bytes, size: int) -> None:
        self.total += size
        if self.total > self.job["max_total_bytes"]:
            self.overflow = f"more than {self.job['max_total_bytes']} bytes"
            self.add("unsent", path, size)
            return
        if size > self.job["max_file_bytes"]:
            self.add("big", path, size)
            return
        make_accessible(fd, name)
        try:
            data = read_regular(fd, name, self.job["max_file_bytes"])
        except Refused as error:
            self.add("closed", path, str(error))
            return
        digest = hashlib.sha256(data).hexdigest()
        if digest in self.known:
            self.add("file", path, len(data), digest, False)
        elif self.sent + len(data) > self.job["max_sent_bytes"]:
            self.add("unsent", path, len(data))
        else:
            self.sent += len(data)
            self.contents.append(data)
            self.add("file", path, len(data), digest, True)

    def add(self, kind: str, path: bytes, *rest: Any) -> None:
        self.entries.append([kind, base64.b64encode(path).decode(), *rest])


def read_regular(folder: int, name: str, max_bytes: int) -> bytes:
    try:
        fd = os.open(name, _READ, dir_fd=folder)
    except OSError as error:
        raise Refused(f"{name!r} cannot be read ({error.strerror})") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{name!r} is no regular file")
        if status.st_size > max_bytes:
            raise Refused(f"{name!r} has {status.st_size} bytes; at most {max_bytes} are read")
        with open(fd, "rb", closefd=False) as stream:
            data = stream.read(max_bytes + 1)
    finally:
        os.close(fd)
    if len(data) > max_bytes:
        raise Refused(f"{name!r} grew beyond {max_bytes} bytes while it was read")
    return data


def remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Refused(f"{name!r} cannot be replaced ({error.strerror})") from error


def is_executable(folder: int, name: str) -> bool:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o100)


def make_accessible(folder: int, name: str) -> None:
    """Give the owner full rights to the file or folder `name`, never to what a link of that name points to."""
    try:
        fd = os.open(name, _LOOK, dir_fd=folder)
    except OSError:
        return
    try:
        mode = os.fstat(fd).st_mode
        if mode & 0o700 != 0o700 and (stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and not mode & 0o400)):
            try:
                os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode) | 0o700)
            except OSError:
                return  # a mount that is read-only; whoever opens it next says so
    finally:
        os.close(fd)


def clear_folder(root: int) -> None:
    """Remove all below the open folder `root`, however deep: folders in a subfolder move up before it is removed."""
    moved = 0
    pending = True
    while pending:
        pending = False
        for name in os.listdir(root):
            if unlink_or_rmdir(root, name):
                continue
            make_accessible(root, name)
            below = os.open(name, _DIRECTORY, dir_fd=root)
            try:
                for inner in os.listdir(below):
                    if not unlink_or_rmdir(below, inner):
                        make_accessible(below, inner)
                        moved += 1
                        os.rename(inner, f"moved-{os.getpid()}-{moved}", src_dir_fd=below, dst_dir_fd=root)
                        pending = True
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=root)


def unlink_or_rmdir(folder: int, name: str) -> bool:
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)
        return True
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        return False
    return True


# --- the way to the proxy ---


def tunnel(port: int) -> None:
    """In the keeper: serve `port` on the pod's loopback, and carry each connection as frames over stdin and stdout.

    A frame is the connection's number (4 bytes), a length (4 bytes) and so many bytes; none of them: end of stream.
    Ends when stdin does.
    """
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    os.write(1, b"ready\n")
    connections: dict[int, socket.socket] = {}
    number = 0
    pending = b""
    while True:
        sources: list[Any] = [0, *([listener] if len(connections) < _MAX_CONNECTIONS else []), *connections.values()]
        for source in select.select(sources, [], [])[0]:
            if source == 0:
                part = os.read(0, _CHUNK)
                if not part:
                    return
                pending += part
                for key, data in frames(pending):
                    pending = pending[8 + len(data) :]
                    deliver(connections, key, data)
            elif source is listener:
                number += 1
                connections[number] = listener.accept()[0]
                connections[number].settimeout(10.0)
            else:
                key = next((k for k, v in connections.items() if v is source), 0)
                if key:
                    carry(connections, key)


def frames(pending: bytes) -> "Iterator[tuple[int, bytes]]":
    while len(pending) >= 8:
        size = int.from_bytes(pending[4:8], "big")
        if len(pending) < 8 + size:
            return
        yield int.from_bytes(pending[:4], "big"), pending[8 : 8 + size]
        pending = pending[8 + size :]


def deliver(connections: "dict[int, socket.socket]", key: int, data: bytes) -> None:
    """Pass on what the proxy sent; a reader that does not read for long is cut off, as it would hold up the others."""
    connection = connections.get(key)
    if connection is None:
        return
    try:
        if data:
            connection.sendall(data)
            return
    except OSError:
        write_frame(key, b"")
    connection.close()
    del connections[key]


def carry(connections: "dict[int, socket.socket]", key: int) -> None:
    try:
        data = connections[key].recv(_CHUNK)
    except OSError:
        data = b""
    write_frame(key, data)
    if not data:
        connections.pop(key).close()


def write_frame(key: int, data: bytes) -> None:
    write_all(key.to_bytes(4, "big") + len(data).to_bytes(4, "big") + data)


def write_all(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def main() -> None:
    """Do the one operation that stdin asks for."""
    hide()
    stdin = sys.stdin.buffer
    size = stdin.read(8)
    job = json.loads(stdin.read(int.from_bytes(size, "big")))
    if job["op"] == "tunnel":
        return tunnel(job["port"])
    try:
        answer, contents = globals()["op_" + job["op"]](job, stdin)
    except Refused as error:
        answer, contents = {"refused": str(error)}, []
    except OSError as error:
        what = "refused" if error.errno in _INSIDERS_DOING else "failed"
        answer, contents = {what: f"{type(error).__name__}: {error}"}, []
    packet = json.dumps(answer).encode()
    write_all(len(packet).to_bytes(8, "big") + packet)
    for content in contents:
        write_all(content)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ("keeper", "commands", "readonly"):
        be_init(sys.argv[1])
    else:
        main()
