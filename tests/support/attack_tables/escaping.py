"""Getting out of the sandbox: network, limits, privileges."""

from support.attacks import Attack, code, py

from harness.verifier import Status

_NETWORK = "network egress and DNS"
_LIMITS = "escaping limits"
_FAILED = frozenset({Status.FAILED})

_REACH_HOST = """
import socket

hosts = ["127.0.0.1", "localhost", "@HOST_ADDRESS@", "host.docker.internal", "172.17.0.1", "::1"]
try:
    for line in open("/proc/net/route").read().splitlines()[1:]:
        hosts.append(socket.inet_ntoa(bytes.fromhex(line.split()[2])[::-1]))
except OSError:
    pass
for host in hosts:
    for port in (@LOOPBACK_PORT@, @OPEN_PORT@):
        try:
            socket.create_connection((host, port), 0.5).close()
            breach(f"{host}:{port}")
        except OSError:
            pass
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (host, @UDP_PORT@))
    except OSError:
        pass
"""
_REACH_WORLD = """
import socket

for address in (("192.0.2.1", 80), ("1.1.1.1", 53), ("8.8.8.8", 53), ("169.254.169.254", 80), ("10.96.0.1", 443)):
    try:
        socket.create_connection(address, 0.5).close()
        breach(address)
    except OSError:
        pass
for name in ("example.org", "example.com", "localhost.localdomain", "kubernetes.default.svc"):
    try:
        socket.getaddrinfo(name, 443)
        breach(name)
    except OSError:
        pass
for family, kind, protocol in ((socket.AF_PACKET, socket.SOCK_RAW, 3), (socket.AF_INET, socket.SOCK_RAW, 1)):
    try:
        socket.socket(family, kind, protocol)
        breach("a raw socket")
    except OSError:
        pass
interfaces = [line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]]
if set(interfaces) - {"lo", "tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0"}:
    breach(interfaces)
"""
_REACH_SOCKETS = """
import glob, os, socket

paths = ["@HOST_SOCKET@", "\\0@ABSTRACT@", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/dev/log"]
paths += [p for top in ("/run", "/var/run", "/tmp") for p in glob.glob(top + "/**/*.sock", recursive=True)]
for path in paths:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        breach(path)
    except OSError:
        pass
for cid in (0, 1, 2):
    try:
        with socket.socket(40, socket.SOCK_STREAM) as vsock:
            vsock.settimeout(0.5)
            vsock.connect((cid, 22))
            breach("vsock")
    except (OSError, ValueError, OverflowError):
        pass
"""

_PRIVILEGES = """
import ctypes, os

libc = ctypes.CDLL(None, use_errno=True)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb"):
    if int(status[name], 16):
        breach(name)
if status["NoNewPrivs"].strip() != "1":
    breach("new privileges")
if os.geteuid() == 0 or os.getuid() == 0:
    breach("root")
for name, attempt in {
    "setuid": lambda: os.setuid(0),
    "setgroups": lambda: os.setgroups([0]),
    "chroot": lambda: os.chroot("/tmp"),
    "chown": lambda: os.chown("/workspace", 0, 0),
    "nice": lambda: os.nice(-5),
    "sethostname": lambda: __import__("socket").sethostname("x"),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, 0, -10),
}.items():
    try:
        attempt()
        breach(name)
    except OSError:
        pass
for name in ("su", "sudo", "mount", "ping", "newgrp", "pkexec"):
    path = f"/usr/bin/{name}"
    if os.path.exists(path) and os.system(f"{path} -c 'id -u' < /dev/null 2> /dev/null | grep -qx 0") == 0:
        breach(path)
"""
_NAMESPACES = """
import ctypes, os

libc = ctypes.CDLL(None, use_errno=True)
for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000, 0x04000000, 0x02000000, 0x08000000):
    if os.fork() == 0:
        if libc.unshare(flag) == 0:
            breach(f"unshare {flag:#x}")
        os._exit(0)
    os.wait()
for args in ((b"proc", b"/tmp", b"proc", 0, None), (b"x", b"/tmp", b"tmpfs", 0, None),
             (b"/", b"/tmp", None, 4096, None)):
    if libc.mount(*args) == 0:
        breach("mount")
if libc.umount2(b"/tmp", 2) == 0 or libc.umount2(b"/workspace", 2) == 0:
    breach("umount")
if libc.mount(None, b"/", None, 32 | 4096, None) == 0 or libc.mount(None, b"/usr", None, 32 | 4096, None) == 0:
    breach("remount")
for pid in ("1", str(os.getppid())):
    for name in ("mnt", "net", "user", "pid"):
        try:
            fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
            if libc.setns(fd, 0) == 0 and name in ("mnt", "user", "net"):
                breach(f"setns {name}")
        except OSError:
            pass
"""
_KERNEL = """
import ctypes, os

libc = ctypes.CDLL(None, use_errno=True)
for name, number, args in (("bpf", 321, (0, 0, 0)), ("init_module", 175, (0, 0, b"")),
                           ("kexec_load", 246, (0, 0, 0, 0)), ("reboot", 169, (0xfee1dead, 672274793, 0, 0)),
                           ("swapon", 167, (b"/tmp/x", 0)),
                           ("acct", 163, (b"/tmp/x",)), ("settimeofday", 164, (b"\\0" * 16, 0)), ("iopl", 172, (3,)),
                           ("open_by_handle_at", 304, (-100, b"\\0" * 64, 0)), ("pivot_root", 155, (b"/tmp", b"/tmp"))):
    if libc.syscall(number, *args) == 0:
        breach(name)
for path in ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches",
             "/sys/fs/cgroup/x/cgroup.procs",
             "/sys/kernel/uevent_helper", "/dev/kmsg",
             "/dev/mem", "/dev/fuse", "/dev/kvm", "/dev/loop-control"):
    try:
        os.close(os.open(path, os.O_WRONLY))
        breach(path)
    except OSError:
        pass
for pid in ("self", "1"):
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w") as stream:
            stream.write("-1000")
        breach("safety from the kernel's memory killer")
    except OSError:
        pass
"""
_PTRACE = """
import ctypes, os, signal

libc = ctypes.CDLL(None, use_errno=True)
for pid in (1, @HOST_PID@, os.getppid()):
    if pid == os.getpid() or pid == 0:
        continue
    if libc.ptrace(16, pid, 0, 0) == 0 and pid != os.getppid():
        breach(f"ptrace {pid}")
    local = ctypes.create_string_buffer(8)
try:
    os.kill(@HOST_PID@, 0)
    comm = open("/proc/@HOST_PID@/cmdline", "rb").read()
    if b"pytest" in comm or b"bench" in comm:
        breach("the host's process can be signalled")
except OSError:
    pass
"""
_RAISE_LIMITS = """
import os, resource

for name in ("AS", "NPROC", "FSIZE", "NOFILE", "CPU", "CORE"):
    which = getattr(resource, "RLIMIT_" + name)
    soft, hard = resource.getrlimit(which)
    for wanted in (resource.RLIM_INFINITY, hard + 1):
        if hard == resource.RLIM_INFINITY:
            continue
        try:
            resource.setrlimit(which, (wanted, wanted))
            breach(f"limit {name}")
        except (OSError, ValueError, OverflowError):
            pass
    try:
        hard = resource.prlimit(1, which)[1]
        if hard != resource.RLIM_INFINITY:
            resource.prlimit(1, which, (hard + 1, hard + 1))
            breach(f"limit {name} of process 1")
    except (OSError, ValueError, OverflowError):
        pass
"""
_WRITE_SYSTEM = """
import os, sys

tops = ["/", "/usr", "/usr/bin", "/usr/lib", "/bin", "/lib", "/etc", "/opt", "/dev", "/proc", "/var"]
tops.append(os.path.dirname(sys.executable))
for top in tops:
    try:
        with open(os.path.join(top, "evil"), "w"):
            breach(top)
    except OSError:
        pass
for path in ("/usr/bin/env", "/bin/sh", os.path.realpath(sys.executable), "/etc/passwd", os.__file__):
    for attempt in (lambda: os.close(os.open(path, os.O_WRONLY)), lambda: os.chmod(path, 0o777),
                    lambda: os.unlink(path)):
        try:
            attempt()
            breach(path)
        except OSError:
            pass
"""


def _both(name: str, kind: str, tries: str, text: str) -> list[Attack]:
    """The same attempt by the agent, and by the code under test while it is graded."""
    return [
        Attack(f"{name}_by_the_agent", kind, tries, commands=(py(text),), expect=_FAILED),
        Attack(f"{name}_while_graded", kind, tries, files={"calc.py": code(text)}, expect=_FAILED),
    ]


ATTACKS = [
    *_both("reach_host_ports", _NETWORK, "connects to ports of the host", _REACH_HOST),
    *_both("reach_the_world", _NETWORK, "connects and resolves outside, and opens raw sockets", _REACH_WORLD),
    *_both(
        "reach_host_sockets", _NETWORK, "connects to Unix sockets of the host, abstract ones and vsock", _REACH_SOCKETS
    ),
    *_both("raise_privileges", _LIMITS, "becomes root by setuid, groups, programs", _PRIVILEGES),
    *_both("make_namespaces", _LIMITS, "makes namespaces, mounts and enters those of others", _NAMESPACES),
    *_both("ask_the_kernel", _LIMITS, "loads modules, reboots, writes kernel settings and devices", _KERNEL),
    *_both("trace_others", _LIMITS, "traces and signals processes of others", _PTRACE),
    *_both("raise_limits", _LIMITS, "raises its resource limits", _RAISE_LIMITS),
    *_both("write_the_system", _LIMITS, "writes to system files and folders", _WRITE_SYSTEM),
]
