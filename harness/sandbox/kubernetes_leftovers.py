"""Pods that dead processes have left in a cluster."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from harness.sandbox.base import SandboxConfig, SandboxError
from harness.sandbox.kubernetes_api import open_api
from harness.sandbox.kubernetes_pod import MANAGED_BY
from harness.sandbox.leftovers import Leftover
from harness.sandbox.owner import is_alive, is_ours

T = TypeVar("T")


def leftovers(config: SandboxConfig) -> list[Leftover]:
    """Pods of the configured namespace whose owner is dead; what `harness.reaper` asks for. Blocks.

    Raises:
        SandboxError: the cluster does not answer.
    """
    return run_blocking(_leftovers(config))


async def _leftovers(config: SandboxConfig) -> list[Leftover]:
    async with open_api(config.kubernetes) as api:
        pods = await api.list_pods(MANAGED_BY)
    found = []
    for pod in pods:
        metadata = pod["metadata"]
        owner = metadata.get("labels") or {}
        if is_ours(owner) and not is_alive(owner):
            made = metadata.get("creationTimestamp")
            since = datetime.fromisoformat(made.replace("Z", "+00:00")).timestamp() if made else None
            remove = partial(_remove_dead, config, metadata["name"], owner)
            found.append(Leftover("kubernetes", "pod", metadata["name"], owner, since, remove))
    return found


def _remove_dead(config: SandboxConfig, name: str, owner: Mapping[str, str]) -> None:
    if is_alive(owner):
        raise SandboxError(f"pod {name} is in use; its owner lives")

    async def remove() -> None:
        async with open_api(config.kubernetes) as api:
            await api.delete_pod(name, config.kubernetes.stop_timeout)

    run_blocking(remove())


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, from an event loop of its own in another thread: this one may have a loop that runs."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="testgrad-kubernetes")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
