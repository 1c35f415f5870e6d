"""Whether an engine confines as it is asked to: a command looks around, and is judged by what it sees."""

import json

from harness.sandbox.base import ExecResult, SandboxConfig

PROBE = """\
import json, os, resource, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
def writable(name):
    try:
        open(name, "w").close()
    except OSError:
        return False
    return True
def opens(family):
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True
print(json.dumps({
    "uid": os.getuid(),
    "capabilities": [status[name].strip().strip("0") for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "seccomp": status["Seccomp"].strip(),
    "address_space": resource.getrlimit(resource.RLIMIT_AS)[1],
    "file_size": resource.getrlimit(resource.RLIMIT_FSIZE)[1],
    "interfaces": [name for _, name in socket.if_nameindex()],
    "odd_sockets": [family for family in (17, 38, 40) if opens(family)],
    "writable": [name for name in ("/x", "/usr/x", "/etc/x", "/workspace/x", "/tmp/x") if writable(name)],
}))
"""
"""For a container's Python, run over a read-only workspace."""


def judge_probe(config: SandboxConfig, result: ExecResult) -> str:
    """What is wrong with how the probe was confined, or an empty string."""
    try:
        told = json.loads(result.stdout)
    except ValueError:
        complaint = result.stderr.decode(errors="replace").strip()[-300:]
        return f"a probe ended with exit code {result.exit_code}: {complaint or 'no message'}"
    wanted = {
        "uid": config.docker.user(),
        "capabilities": [""] * 5,
        "no_new_privileges": "1",
        "seccomp": "2",
        "address_space": config.memory_bytes,
        "file_size": config.file_bytes,
        "interfaces": ["lo"],
        "odd_sockets": [],
        "writable": ["/tmp/x"],
    }
    wrong = [
        f"{name} is {told.get(name)!r} instead of {value!r}"
        for name, value in wanted.items()
        if told.get(name) != value
    ]
    return "; ".join(wrong)
