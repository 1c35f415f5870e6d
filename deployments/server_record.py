"""Which server processes were started under a run root: `services/services.json`, and who may change it."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from deployments.server_kinds import HOST


@dataclass(frozen=True)
class Server:
    """A process that was started here: the leader of its session, with its start time in clock ticks since boot."""

    pid: int
    started: int
    port: int
    host: str = HOST
    """Where it listens."""

    @property
    def url(self) -> str:
        return f"http://{HOST if self.host in ('0.0.0.0', '::') else self.host}:{self.port}"


def record_path(root: Path) -> Path:
    """The file that names the servers under `root`."""
    return root / "services" / "services.json"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_servers(root: Path) -> dict[str, Server]:
    """The servers that were started under `root` since the machine booted, living or not."""
    path = record_path(root)
    if not path.exists():
        return {}
    record = json.loads(path.read_text())
    if record["boot"] != _boot():
        return {}
    return {
        name: Server(**{key: entry[key] for key in ("pid", "started", "port", "host") if key in entry})
        for name, entry in record["servers"].items()
    }


def write_servers(root: Path, servers: dict[str, Server], ready: bool = False) -> None:
    """Record `servers`; `ready` once all of them have answered. Of none, no file is left."""
    if not servers:
        record_path(root).unlink(missing_ok=True)
        return
    entries = {name: {**asdict(server), "url": server.url} for name, server in servers.items()}
    replace(record_path(root), json.dumps({"boot": _boot(), "ready": ready, "servers": entries}, indent=1))


def replace(path: Path, text: str) -> None:
    """Writes `path` so that a reader finds the old text or the new, whole."""
    partial = path.with_name(f".{path.name}.part")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


@contextmanager
def only_one(root: Path) -> Iterator[None]:
    """A second `up` or `down` of the same root waits for the first."""
    with (root / "services" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
