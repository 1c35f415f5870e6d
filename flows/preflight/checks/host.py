"""This machine: packages, limits, shared memory, clock, what others use, and what dead processes have left."""

import importlib.util
import os
import time
from collections.abc import Iterator

from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, fatal, ok, warn
from flows.preflight.machine import gib
from flows.preflight.registry import Cost, check
from harness.reaper import reap
from trainer.model import ModelError

_FILES_A_TRIAL = 24
"""Open files of one trial on the host: sockets of its session, pipes of its commands, its journal."""
_FILES = 512
_PROCESSES_A_TRIAL = 4
_OBJECT_STORE = 256 * 2**20
"""What a private Ray cluster takes of shared memory; see trainer/placement.py."""
_FUTURE = 60.0
_LOW_MEMORY_FOR_ENGINE = 64 * 2**30


@check("packages")
def packages(facts: Facts) -> Iterator[Finding]:
    """What the run imports is installed."""
    config = facts.config
    needed = {"ray": "make install", "prefect": "make install", "mlflow": "make install", "deepspeed": "make install"}
    needed["vllm"] = "install testgrad[gpu]" if config.learner.gpus_per_rank else "install testgrad[cpu]"
    needed |= {"docker": "install testgrad[docker]"} if config.sandbox.backend == "docker" else {}
    needed |= {"kubernetes": "install testgrad[k8s]"} if config.sandbox.backend == "kubernetes" else {}
    absent = {name: mend for name, mend in needed.items() if importlib.util.find_spec(name) is None}
    for name, mend in absent.items():
        yield fatal("packages", name, "is not installed", mend)
    if not absent:
        yield ok("packages", ", ".join(sorted(needed)), "are installed")


@check("limits")
def limits(facts: Facts) -> Iterator[Finding]:
    """Open files, processes and address space of this process, for as many trials as run at once."""
    machine, trials = facts.machine, facts.config.rollout.concurrency
    files = _FILES + _FILES_A_TRIAL * trials
    if machine.open_files < files:
        yield fatal(
            "ulimit -n",
            machine.open_files,
            f"is less than {_FILES} + {_FILES_A_TRIAL} x {trials} trials at once = {files}",
            f"ulimit -n {max(files, 65536)}, or lower rollout.concurrency",
        )
    else:
        yield ok("ulimit -n", machine.open_files, f"open files are enough for {trials} trials at once")
    processes = 256 + _PROCESSES_A_TRIAL * trials
    if machine.processes < processes:
        yield fatal(
            "ulimit -u", machine.processes, f"is less than {processes} processes and threads", f"ulimit -u {processes}"
        )
    else:
        yield ok("ulimit -u", machine.processes, f"processes are enough for {trials} trials at once")
    if machine.address_space is not None and machine.address_space < _LOW_MEMORY_FOR_ENGINE:
        yield warn(
            "ulimit -v",
            gib(machine.address_space),
            "engines reserve far more address space than they use",
            "ulimit -v unlimited",
        )


@check("shared-memory")
def shared_memory(facts: Facts) -> Iterator[Finding]:
    """Weights are synced through shared memory, and a private Ray cluster keeps its objects there."""
    machine, serving = facts.machine, facts.config.serving
    if machine.shared_memory_free is None or machine.shared_memory is None:
        yield warn("/dev/shm", "", "is not there", "mount a tmpfs at /dev/shm")
        return
    largest = _largest_tensor_bytes(facts)
    bucket = max(serving.bucket_mib * 2**20, largest)
    store = 0 if os.environ.get("RAY_ADDRESS") else _OBJECT_STORE
    need = bucket + store
    text = f"a bucket of {gib(bucket)} + {gib(store)} of Ray = {gib(need)}"
    free = machine.shared_memory_free
    if need > free:
        yield fatal(
            "/dev/shm",
            gib(free),
            f"free is less than {text}",
            "enlarge it (docker run --shm-size 8g), lower serving.bucket_mib, or remove what fills it",
        )
    elif free < machine.shared_memory / 2:
        yield warn("/dev/shm", gib(free), f"free of {gib(machine.shared_memory)}: something fills it", "testgrad clean")
    else:
        yield ok("/dev/shm", gib(free), f"free, for {text}")


def _largest_tensor_bytes(facts: Facts) -> int:
    """Bytes of the largest tensor, which a bucket must hold; 0 if the model cannot be read, as its own check says."""
    try:
        return 0 if facts.model is None else 4 * facts.model.largest_tensor
    except ModelError:
        return 0


@check("clock")
def clock(facts: Facts) -> Iterator[Finding]:
    """Budgets, leftovers and resumes are dated by this clock."""
    ahead = _newest_file(facts) - time.time()
    if ahead > _FUTURE:
        yield fatal(
            "clock",
            time.strftime("%Y-%m-%d %H:%M"),
            f"is {ahead:.0f} s behind the newest file of {facts.root}",
            "set it by NTP, or touch those files",
        )
    elif facts.machine.clock_synchronised is False:
        yield warn("clock", time.strftime("%Y-%m-%d %H:%M"), "nothing keeps it right, says the kernel", "set it by NTP")
    elif facts.machine.clock_synchronised is None:
        yield warn(
            "clock", time.strftime("%Y-%m-%d %H:%M"), "the kernel does not say whether it is kept", "set it by NTP"
        )
    else:
        yield ok("clock", time.strftime("%Y-%m-%d %H:%M"), "is kept right, says the kernel")


def _newest_file(facts: Facts) -> float:
    """When the newest of what lies at the top of root, or of this run, was written; 0 if nothing does."""
    config = facts.config
    folders = (facts.root, facts.root / config.project, facts.root / config.project / config.experiment)
    entries = [entry for folder in folders if folder.is_dir() for entry in os.scandir(folder)]
    return max((entry.stat(follow_symlinks=False).st_mtime for entry in entries), default=0.0)


@check("gpus-in-use", Cost.PROBE)
def gpus_in_use(facts: Facts) -> Iterator[Finding]:
    """GPUs that others hold have less memory than engines believe; not asked before training, as for `in-flight`."""
    if not facts.config.learner.gpus_per_rank:
        return
    others = [process for process in facts.machine.gpu_processes if process.pid != os.getpid()]
    if others:
        shown = ", ".join(f"{process.name} ({process.pid})" for process in others[:5])
        yield fatal("GPUs", len(facts.machine.gpus), f"are used by others: {shown}", "wait for them, or end them")
    elif facts.machine.gpus:
        yield ok("GPUs", len(facts.machine.gpus), "nobody else uses them")


@check("leftovers")
def leftovers(facts: Facts) -> Iterator[Finding]:
    """What dead processes left on this host takes room, and names."""
    yield from _swept(facts, [])


@check("backend-leftovers", Cost.PROBE)
def backend_leftovers(facts: Facts) -> Iterator[Finding]:
    """The same in the engine or the cluster."""
    if facts.config.sandbox.backend != "bubblewrap":
        yield from _swept(facts, [facts.config.sandbox.backend])


def _swept(facts: Facts, backends: list[str]) -> Iterator[Finding]:
    sweep = reap(facts.config.sandbox, backends, apply=False)
    where = ", ".join(backends) or "this host"
    for name, reason in sweep.unreachable.items():
        yield warn("leftovers", name, f"could not be looked at: {reason}", "see the check of the backend")
    if sweep.found:
        names = ", ".join(leftover.name for leftover in sweep.found[:3])
        yield warn("leftovers", len(sweep.found), f"of dead processes on {where}: {names}", "testgrad clean --apply")
    elif not sweep.unreachable:
        yield ok("leftovers", "none", f"on {where}")
