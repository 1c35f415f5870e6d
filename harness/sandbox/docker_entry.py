"""Comes before every command in its container: adds what an engine cannot be asked for, then becomes the command.

    python3 -I -S -B -c THIS_FILE FOLDER MEMORY_BYTES SECONDS FILTER COMMAND...

The limit of a process's address space; our filter of system calls (base64 of the kernel's own encoding) on top of the
engine's, since older engines let sockets through that no namespace holds, such as those to a virtual machine's host;
the folder; and a deadline that needs nobody outside. Standard library only, Python >= 3.9.
"""

import base64
import ctypes
import os
import resource
import signal
import sys

_PR_SET_SECCOMP, _FILTER = 22, 2
_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin")  # not PATH, which is the command's
CANNOT_PREPARE = 125


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def main(argv: "list[str]") -> int:
    """Returns only the exit code of a failure."""
    folder, memory, seconds, code, *command = argv
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    try:
        os.chdir(folder)
    except OSError as error:
        print(f"{folder}: {error.strerror}", file=sys.stderr)
        return 126
    install(base64.b64decode(code))
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and an exec would hand that on
        signal.signal(ignored, signal.SIG_DFL)
    for place in _FOLDERS:
        try:
            os.execv(f"{place}/timeout", ["timeout", "-s", "KILL", seconds, *command])
        except FileNotFoundError:
            continue
    print("the image has no timeout(1); install coreutils in it", file=sys.stderr)
    return CANNOT_PREPARE


def install(code: bytes) -> None:
    """Filter the system calls of this process, and of all that comes from it, by a BPF program."""
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(code) // 8, code)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the filter of system calls cannot be installed")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
