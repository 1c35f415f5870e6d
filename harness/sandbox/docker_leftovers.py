"""Containers and volumes that dead processes have left on engines."""

import functools
from collections.abc import Callable, Mapping
from datetime import datetime

from harness.sandbox.base import SandboxConfig
from harness.sandbox.docker_config import DockerHost, hosts_of
from harness.sandbox.docker_engine import connect
from harness.sandbox.docker_threads import in_thread
from harness.sandbox.leftovers import Leftover
from harness.sandbox.owner import PREFIX, is_alive, is_ours


async def leftovers(config: SandboxConfig) -> list[Leftover]:
    """Containers and volumes on the configured engines whose owner is dead; containers first, as they hold volumes.

    Raises:
        SandboxError: an engine does not answer.
    """
    found = []
    for host in hosts_of(config.docker):
        found += await in_thread(functools.partial(_leftovers_at, host))
    return found


def _leftovers_at(host: DockerHost) -> list[Leftover]:
    engine = connect(host)
    containers, volumes = engine.labelled(PREFIX + "project")
    found = []
    for container in containers:
        name, owner = container["Id"], container.get("Labels") or {}
        if is_ours(owner) and not is_alive(owner):
            remove = functools.partial(_remove_dead, owner, engine.remove, name)
            title = (container.get("Names") or [name])[0].lstrip("/")
            found.append(Leftover("docker", "container", title, owner, float(container["Created"]), remove))
    for volume in volumes:
        name, owner = volume["Name"], volume.get("Labels") or {}
        if is_ours(owner) and not is_alive(owner):
            remove = functools.partial(_remove_dead, owner, engine.remove_volume, name)
            since = datetime.fromisoformat(volume["CreatedAt"].replace("Z", "+00:00")).timestamp()
            found.append(Leftover("docker", "volume", name, owner, since, remove))
    return found


def _remove_dead(owner: Mapping[str, str], remove: Callable[[str], None], name: str) -> None:
    if not is_alive(owner):
        remove(name)
