"""The filter of system calls: what no program under test needs, and where kernels had their holes.

bwrap already takes all capabilities and further namespaces away; this narrows what is left to try. A denied call fails
as for a user without rights (EPERM), so programs that can do without it go on. The program is classic BPF in the
kernel's own encoding, as bwrap's `--seccomp` reads it.
"""

import errno
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from harness.sandbox.base import SandboxUnavailable

SYSCALLS: dict[str, tuple[int | None, int | None]] = {  # name: its number on x86_64, on aarch64
    # other processes' memory and descriptors; the forwarder runs as the same user
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # mounts, roots and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # large and young parts of the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "vmsplice": (278, 75),
    # key rings, which no namespace divides
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # memory that belongs to no process and counts for none
    "shmget": (29, 194),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # the machine itself
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
}
"""The calls that are denied whatever their arguments."""

ABSENT = {
    "clone3": (435, 435),  # its flags lie in memory, where a filter cannot look; libraries then take clone
    "memfd_create": (319, 279),  # files of memory, which may be on their way through a socket and count for no process
    "memfd_secret": (447, 447),
}
"""The calls that the kernel seems not to have, since those who want them are prepared for that."""

_X32_CALLS = 0x40000000  # x86_64's numbers from here on are a second table for the same calls
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: others, such as AF_VSOCK, know no namespace

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16  # where struct seccomp_data holds them; the lower half of an argument comes first
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000  # with the errno


@dataclass(frozen=True)
class _Machine:
    arch: int
    column: int
    clone: int
    ioctl: int
    socket: int


MACHINES = {
    "x86_64": _Machine(arch=0xC000003E, column=0, clone=56, ioctl=16, socket=41),
    "aarch64": _Machine(arch=0xC00000B7, column=1, clone=220, ioctl=29, socket=198),
}


def open_filter() -> int:
    """A descriptor from which bwrap can read this machine's filter once; the caller closes it.

    Raises:
        SandboxUnavailable: no filter is known for this kind of machine.
    """
    machine = os.uname().machine
    if machine not in MACHINES:
        raise SandboxUnavailable(
            f"no system call filter is known for {machine}, only for {', '.join(MACHINES)}; choose another "
            "sandbox.backend"
        )
    fd = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    os.write(fd, compile_filter(MACHINES[machine]))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def compile_filter(machine: _Machine) -> bytes:
    """The filter as the kernel's array of struct sock_filter."""
    code: list[tuple[int, int, str, str]] = [  # operation, operand, where to go if true, if false; "" is the next one
        (_LOAD, _ARCH, "", ""),
        (_EQUAL, machine.arch, "", "unknown"),
        (_LOAD, _NUMBER, "", ""),
        (_AT_LEAST, _X32_CALLS, "unknown", ""),
        *((_EQUAL, number, "deny", "") for row in SYSCALLS.values() if (number := row[machine.column]) is not None),
        *((_EQUAL, row[machine.column], "unknown", "") for row in ABSENT.values()),
        (_EQUAL, machine.clone, "clone", ""),
        (_EQUAL, machine.ioctl, "ioctl", ""),
        (_EQUAL, machine.socket, "socket", "allow"),
    ]
    labels = {"clone": len(code)}
    code += [(_LOAD, _ARGUMENT, "", ""), (_ANY_BIT, _NEW_NAMESPACES, "deny", "allow")]
    labels["ioctl"] = len(code)
    code += [(_LOAD, _ARGUMENT + 8, "", ""), (_EQUAL, _TIOCSTI, "deny", ""), (_EQUAL, _TIOCLINUX, "deny", "allow")]
    labels["socket"] = len(code)
    code += [(_LOAD, _ARGUMENT, "", ""), *((_EQUAL, family, "allow", "") for family in _FAMILIES)]
    for name, value in (
        ("family", _FAIL | errno.EAFNOSUPPORT),
        ("deny", _FAIL | errno.EPERM),
        ("unknown", _FAIL | errno.ENOSYS),
        ("allow", _ALLOW),
    ):
        labels[name] = len(code)
        code.append((_RETURN, value, "", ""))
    return _assemble(code, labels)


def _assemble(code: Sequence[tuple[int, int, str, str]], labels: dict[str, int]) -> bytes:
    def jump(place: int, label: str) -> int:
        return labels[label] - place - 1 if label else 0

    return b"".join(
        struct.pack("=HBBI", operation, jump(place, true), jump(place, false), operand)
        for place, (operation, operand, true, false) in enumerate(code)
    )
