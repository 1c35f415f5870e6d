"""What the system says of itself: processors, memory, GPUs, disk, limits, clock."""

import ctypes
import resource
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from trainer.placement import cpu_threads

GIB = 2**30
_SHARED = Path("/dev/shm")
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
_SMI_SECONDS = 20.0


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    gpu: str
    name: str


@dataclass(frozen=True)
class Gpu:
    """One GPU; sizes are bytes."""

    name: str
    memory: int
    uuid: str = ""


@dataclass(frozen=True)
class Machine:
    """This machine. Sizes are bytes; None where the system does not say."""

    cpus: int
    memory: int
    memory_available: int
    shared_memory: int | None
    shared_memory_free: int | None
    open_files: int
    processes: int
    address_space: int | None
    clock_synchronised: bool | None
    gpus: Sequence[Gpu] = ()
    gpu_processes: Sequence[GpuProcess] = field(default=())

    @classmethod
    def here(cls) -> "Machine":
        """As the system tells it now."""
        memory = psutil.virtual_memory()
        shared = shutil.disk_usage(_SHARED) if _SHARED.is_dir() else None
        return cls(
            cpus=cpu_threads(),
            memory=min(memory.total, _cgroup_limit() or memory.total),
            memory_available=min(memory.available, _cgroup_limit() or memory.available),
            shared_memory=shared.total if shared else None,
            shared_memory_free=shared.free if shared else None,
            open_files=_limit(resource.RLIMIT_NOFILE) or 2**31,
            processes=_limit(resource.RLIMIT_NPROC) or 2**31,
            address_space=_limit(resource.RLIMIT_AS),
            clock_synchronised=_clock_synchronised(),
            gpus=_gpus(),
            gpu_processes=_gpu_processes(),
        )


def disk_free(path: Path) -> int:
    """Bytes that this user may still write where `path` is, or will be."""
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def gib(size: float) -> str:
    """Bytes as people read them."""
    return f"{size / GIB:.1f} GiB" if size >= 0.1 * GIB else f"{size / 2**20:.0f} MiB"


def _limit(kind: int) -> int | None:
    """A soft limit of this process, None if there is none."""
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _cgroup_limit() -> int | None:
    """The memory that a container may take, None if it is not limited."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() and int(text) < 2**60 else None
    return None


def _clock_synchronised() -> bool | None:
    """Whether something keeps the clock right; None where the kernel does not say."""
    libc = ctypes.CDLL(None, use_errno=True)
    adjtimex = getattr(libc, "adjtimex", None)
    if adjtimex is None:
        return None
    state = adjtimex(ctypes.create_string_buffer(512))
    return None if state < 0 else state != _UNSYNCHRONISED


def _gpus() -> list[Gpu]:
    rows = _smi("--query-gpu=name,memory.total,uuid")
    return [Gpu(row[0], int(float(row[1])) * 2**20, row[2]) for row in rows if len(row) == 3 and row[1].isdigit()]


def _gpu_processes() -> list[GpuProcess]:
    rows = _smi("--query-compute-apps=pid,gpu_uuid,process_name")
    return [GpuProcess(int(row[0]), row[1], row[2]) for row in rows if len(row) == 3 and row[0].isdigit()]


def _smi(query: str) -> list[list[str]]:
    """Rows that nvidia-smi answers; none where there is none, or it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return []
    return [[cell.strip() for cell in line.split(",", 2)] for line in done.stdout.splitlines() if line.strip()]
