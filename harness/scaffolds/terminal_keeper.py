"""Runs commands for the host inside a sandbox, so that what one leaves running is there for the next.

    python -I -S -B terminal_keeper.py PORT < TOKEN

It connects to PORT on the loopback, says the token, and then answers each line, a JSON object {"argv", "timeout"},
with one: {"code", "out"}. When the host hangs up it ends, and with it the sandbox's command that it is, and all that it
started. This file runs inside, where hostile code may do to it whatever it likes: it knows nothing but the token, by
which the host tells it from others, and can do nothing that the code beside it could not. It needs a Python >= 3.9 and
its standard library alone.
"""

import json
import socket
import subprocess
import sys

MAX_OUTPUT = 1 << 20
"""Bytes of one command's output that are sent; the end counts."""

TIMED_OUT = 124
NOT_FOUND = 127


def main(port: int) -> None:
    """Serve the host until it hangs up."""
    token = sys.stdin.readline()
    with socket.create_connection(("127.0.0.1", port)) as host, host.makefile("rwb") as stream:
        stream.write(token.encode())
        stream.flush()
        for line in stream:
            request = json.loads(line)
            code, out = run(request["argv"], request["timeout"])
            stream.write(json.dumps({"code": code, "out": out}).encode() + b"\n")
            stream.flush()


def run(argv: "list[str]", timeout: float) -> "tuple[int, str]":
    """Exit code and output of one command; what it leaves running must not hold its output open."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return TIMED_OUT, ""
    except OSError as error:
        return NOT_FOUND, str(error)
    return done.returncode, done.stdout[-MAX_OUTPUT:].decode(errors="replace")


if __name__ == "__main__":
    main(int(sys.argv[1]))
