"""Where actors run: the Ray cluster of a run, and the environment that engines need."""

import asyncio
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from trainer.nodes import demand

NAMESPACE = "testgrad"
FOLDER = "testgrad-ray-"
"""How the name of a private cluster's folder begins; the pid of the process whose it is follows."""
_END_SECONDS = 60.0
"""How long a killed actor may keep its name."""

_folder: str | None = None
"""Where the private cluster of this process keeps its files."""


def cpu_threads() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def engine_environment(threads: int) -> dict[str, str]:
    """Environment variables for an actor that computes with torch.

    Passive waiting matters: threads that spin on contended cores cost up to sixteen times the time.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "TOKENIZERS_PARALLELISM": "false",
        # joblib makes a semaphore when it is imported; a process that is killed just then leaves it
        "JOBLIB_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        # torch would compile its headers anew in every temporary folder, for kernels that its cache holds already
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
        # sockets and caches of engines go with the cluster, also when an engine dies before it can remove them
        **({"TMPDIR": _folder, "VLLM_RPC_BASE_PATH": _folder} if _folder else {}),
    }


def cluster_base() -> str:
    """Where folders of private clusters lie. Sockets are in them, whose paths are limited to about 100 bytes."""
    temporary = tempfile.gettempdir()
    return temporary if len(temporary) < 24 else "/tmp"


@contextmanager
def ray_cluster() -> Iterator[None]:
    """A connection to the cluster at `RAY_ADDRESS`, or a private one on this machine that ends with the block.

    A private cluster demands a token, since Ray's ports listen on all interfaces, and keeps its files in a temporary
    folder that is removed with it.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    global _folder
    if os.environ.get("RAY_ADDRESS"):
        ray.init(namespace=NAMESPACE, log_to_driver=False)
        try:
            yield
        finally:
            ray.shutdown()
        return
    # Ray demands a token of its own accord; given one, it leaves none in the home directory
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    folder = tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=cluster_base())
    _folder = folder
    try:
        ray.init(
            namespace=NAMESPACE,
            num_cpus=cpu_threads(),
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=256 * 2**20,
            _temp_dir=folder,
        )
        yield
    finally:
        _folder = None
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def find_or_start(
    name: str,
    cls: type,
    *args: object,
    threads: int,
    gpus: float = 0,
    place: Any = None,
    role: str | None = None,
    at_once: int | None = None,
    **env: str,
) -> tuple[Any, bool]:
    """The named actor, and whether it had to be started as `cls(*args)`, by the scheduling strategy `place` if any.

    With a `role` it is on a node that is kept for it, where any is. `at_once` calls may be under way in it; by Ray's
    usual choice a thousand in one whose methods are coroutines, one in others.
    """
    import ray

    try:
        return ray.get_actor(name, namespace=NAMESPACE), False
    except ValueError:
        # not Ray's own choice of one thread per CPU it was asked for: computing actors take turns on all cores
        environment = {"env_vars": engine_environment(threads) | env}
        # detached: found by name, it lives until it is killed or its cluster ends, also when this process does
        options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0, "num_gpus": gpus}
        options |= {"scheduling_strategy": place} if place is not None else {}
        options |= {"resources": demand(role)} if role is not None else {}
        options |= {"max_concurrency": at_once} if at_once is not None else {}
        return ray.remote(cls).options(**options, runtime_env=environment).remote(*args), True


def on_node(node_id: str) -> Any:
    """A scheduling strategy: on the node with this id and no other."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def find_all(prefix: str) -> list[Any]:
    """The named actors `<prefix>/0`, `<prefix>/1`, … that are alive, in order."""
    import ray

    actors: list[Any] = []
    while True:
        try:
            actors.append(ray.get_actor(f"{prefix}/{len(actors)}", namespace=NAMESPACE))
        except ValueError:
            return actors


def find_numbered(prefix: str) -> dict[int, Any]:
    """The named actors `<prefix>/<number>` that are alive, by number: what is left where some have died."""
    import ray

    actors: dict[int, Any] = {}
    for name in ray.util.list_named_actors():
        place, _, number = name.rpartition("/")
        if place == prefix and number.isdecimal():
            try:
                actors[int(number)] = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:  # it has died since
                continue
    return dict(sorted(actors.items()))


async def end_numbered(prefix: str, numbers: Iterable[int]) -> None:
    """Kill these of the actors `<prefix>/<number>`, and wait until their names are free.

    Raises:
        TimeoutError: a name is still taken after a minute.
    """
    import ray

    wanted = set(numbers)
    for number, actor in find_numbered(prefix).items():
        if number in wanted:
            ray.kill(actor)
    deadline = time.monotonic() + _END_SECONDS
    while left := wanted & find_numbered(prefix).keys():
        if time.monotonic() > deadline:
            raise TimeoutError(f"actors {prefix}/{sorted(left)} were killed {_END_SECONDS:g} s ago and are still there")
        await asyncio.sleep(0.05)
