"""Images on an engine: pulled when they are missing, a phase of its own, and removed again when the disk gets full.

Only images that were pulled here are ever removed, those unused for the longest time first, and none that a container
uses. An engine does not remember when an image was last used, so a small file does.
"""

import contextlib
import fcntl
import json
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.sandbox.base import SandboxError, SandboxUnavailable
from harness.sandbox.docker_config import BASE_IMAGE, DockerConfig
from harness.sandbox.docker_engine import Engine, EngineError

_PAUSE = 2.0
_LOOK = 0.1
_REMEMBERED = 60.0
"""Seconds for which an image that was there is believed to be there."""

_lock = threading.Lock()
_locks: dict[tuple[str, str], threading.Lock] = {}
_seen: dict[tuple[str, str], float] = {}


def ensure_image(engine: Engine, config: DockerConfig, stop: threading.Event) -> None:
    """Make sure that the engine has the configured image; pulls it at most once at a time, however many wait for it.

    Gives up soon after `stop` is set.

    Raises:
        SandboxUnavailable: it is not there and must not, or can never, be pulled.
        SandboxError: it could not be pulled, or there is no room for it.
    """
    key = (engine.host.url, config.image)
    if time.monotonic() - _seen.get(key, -_REMEMBERED) < _REMEMBERED:
        return
    with _lock:
        lock = _locks.setdefault(key, threading.Lock())
    while not lock.acquire(timeout=_LOOK):
        if stop.is_set():
            raise SandboxError(f"waiting for image {config.image} was cancelled")
    try:
        if time.monotonic() - _seen.get(key, -_REMEMBERED) < _REMEMBERED:
            return
        record = ImageRecord(config.image_record or _usual_record())
        found = engine.image(config.image)
        if found is None:
            _pull(engine, config, record, stop)
            found = engine.image(config.image)
        if found is None:
            raise SandboxError(f"{engine.host.url}: image {config.image} was pulled and is not there")
        _check(config, found)
        record.used(engine.host.url, config.image)
        _seen[key] = time.monotonic()
    finally:
        lock.release()


def _check(config: DockerConfig, image: dict[str, Any]) -> None:
    volumes = sorted((image.get("Config") or {}).get("Volumes") or {})
    if volumes:
        raise SandboxUnavailable(
            f"image {config.image} declares the volumes {', '.join(volumes)}: places to write without a limit; "
            "build it without VOLUME"
        )


def _pull(engine: Engine, config: DockerConfig, record: "ImageRecord", stop: threading.Event) -> None:
    if config.image == BASE_IMAGE:
        raise SandboxUnavailable(
            f"{engine.host.url} has no image {BASE_IMAGE}; make it there: python -m deployments.docker.build_base"
        )
    if config.pull == "never":
        raise SandboxUnavailable(
            f"{engine.host.url} has no image {config.image}, and sandbox.docker.pull is never; build or pull it there"
        )
    make_room(engine, config, record)
    for attempt in range(config.pull_attempts):
        try:
            engine.pull(config.image, config.pull_timeout, stop)
        except EngineError as error:
            if error.status in (400, 401, 403, 404):  # no such image, or not for us: it stays so
                raise SandboxUnavailable(
                    f"image {config.image} cannot be had: {error}. Correct sandbox.docker.image, or build it; the base "
                    "image is made by python -m deployments.docker.build_base"
                ) from error
            if stop.is_set():
                raise
            if attempt + 1 == config.pull_attempts:
                raise SandboxError(f"image {config.image} cannot be pulled, {attempt + 1} tries: {error}") from error
            stop.wait(_PAUSE * 2**attempt * random.uniform(0.5, 1.5))
        else:
            record.pulled(engine.host.url, config.image)
            return


def make_room(engine: Engine, config: DockerConfig, record: "ImageRecord") -> list[str]:
    """Remove images pulled earlier until `disk_floor_bytes` are free; returns their names.

    Raises:
        SandboxError: too little is free even so.
    """
    removed = []
    candidates = [name for name in record.oldest_first(engine.host.url) if name != config.image]
    while (free := free_bytes(engine)) is not None and free < config.disk_floor_bytes:
        if not candidates:
            raise SandboxError(
                f"{engine.host.url} has {free} free bytes, less than sandbox.docker.disk_floor_bytes "
                f"{config.disk_floor_bytes}; make room (docker system prune) or lower the floor"
            )
        name = candidates.pop(0)
        if engine.remove_image(name):
            record.forget(engine.host.url, name)
            _seen.pop((engine.host.url, name), None)
            removed.append(name)
    return removed


def free_bytes(engine: Engine) -> int | None:
    """Free bytes where the engine keeps its images; None if that cannot be known yet."""
    root = engine.info.root
    if engine.host.local and root and os.path.isdir(root):
        return shutil.disk_usage(root).free
    return engine.free_bytes


class ImageRecord:
    """The file of pulled images and their use: engine -> image -> seconds of the epoch. Shared by processes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pulled(self, engine: str, image: str) -> None:
        with self._open() as record:
            record.setdefault(engine, {})[image] = time.time()

    def used(self, engine: str, image: str) -> None:
        """Note a use; of an image that was not pulled here nothing is noted."""
        if not self._path.exists():
            return
        with self._open() as record:
            if image in record.get(engine, {}):
                record[engine][image] = time.time()

    def forget(self, engine: str, image: str) -> None:
        with self._open() as record:
            record.get(engine, {}).pop(image, None)

    def oldest_first(self, engine: str) -> list[str]:
        with self._open() as record:
            images = dict(record.get(engine, {}))
        return sorted(images, key=images.__getitem__)

    @contextlib.contextmanager
    def _open(self) -> Iterator[dict[str, dict[str, float]]]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            record = _read(text)
            yield record
            changed = json.dumps(record)
            if changed != text:
                file.truncate(0)
                file.write(changed)


def _read(text: str) -> dict[str, dict[str, float]]:
    try:
        stored = json.loads(text or "{}")
    except ValueError:  # broken off by a crash: what it said is lost, and its images are nobody's to remove
        return {}
    if not isinstance(stored, dict):
        return {}
    return {
        str(engine): {str(name): float(at) for name, at in images.items() if isinstance(at, int | float)}
        for engine, images in stored.items()
        if isinstance(images, dict)
    }


def _usual_record() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "testgrad" / "docker-images.json"
