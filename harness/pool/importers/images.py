"""Snapshots out of images on a Docker engine: the repository's folder as the image has it, without its history.

Nothing of an image is run for that, only to adapt one (see `adapted`), and what comes out is bounded. Each folder of
each image is taken once and kept below the pool, named by what the image consists of and not by what it is called;
tasks of one image share its files.
"""

import hashlib
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from harness.pool.importers.adapted import adapting_dockerfile
from harness.pool.importers.archive import unpack_snapshot
from harness.pool.importers.values import ImportProblem
from harness.sandbox import SandboxError
from harness.sandbox.docker_config import DockerConfig, hosts_of
from harness.sandbox.docker_engine import Engine, connect
from harness.sandbox.docker_images import ensure_image
from harness.sandbox.owner import current_owner, labels

KEPT = ".images"
"""Folder beside an index with what was taken out of its tasks' images."""


class ImageSnapshots:
    """The first engine of `config`, and a folder with what was taken out of its images. It can be removed at any time.

    Raises:
        SandboxUnavailable: no engine answers.
    """

    def __init__(self, config: DockerConfig, kept: Path) -> None:
        self._config = config
        self._engine: Engine = connect(hosts_of(config)[0])
        self._kept = kept

    def workdir_of(self, image: str) -> str:
        """The folder that `image` itself calls its working directory; it is pulled if it is not there.

        Raises:
            ImportProblem: it cannot be had, or names none.
        """
        folder = str((self._described(image).get("Config") or {}).get("WorkingDir") or "/")
        if len(PurePosixPath(folder).parts) < 2:
            raise ImportProblem(f"image {image} names no working directory; give the repository's as workdir")
        return folder

    def adapted(self, image: str, python: str | None, removed: Sequence[str]) -> str:
        """An image of this engine made of `image`: see `adapting_dockerfile`. It is made once for each content.

        Raises:
            ImportProblem: it cannot be made.
        """
        dockerfile = adapting_dockerfile(str(self._described(image)["Id"]), python, removed)
        name = f"testgrad-adapted:{hashlib.sha256(dockerfile.encode()).hexdigest()[:32]}"
        try:
            if self._engine.image(name) is None:
                # not labelled as ours: it is to stay when this process is gone
                self._engine.build(name, dockerfile)
        except SandboxError as error:
            raise ImportProblem(f"image {image} cannot be adapted: {error}") from error
        return name

    def write(self, image: str, workdir: str, target: Path) -> list[str]:
        """Put the files of `workdir` in `image` into the empty folder `target`; returns notes on what is left out.

        Raises:
            ImportProblem: the image cannot be had, has no such folder, or one that is too large.
        """
        digest = hashlib.sha256(f"{self._described(image)['Id']}\0{workdir}".encode()).hexdigest()[:32]
        place = self._kept / digest
        if not place.is_dir():
            self._take(image, workdir, place)
        # Links, not copies: a thousand bugs in one repository are then as large as one. Nobody writes into such a file;
        # what differs in a task is written anew.
        shutil.copytree(place / "repo", target, symlinks=True, dirs_exist_ok=True, copy_function=os.link)
        return (place / "notes").read_text(encoding="utf-8").splitlines()

    def _described(self, image: str) -> dict[str, Any]:
        config = self._config.model_copy(update={"image": image})
        try:
            ensure_image(self._engine, config, threading.Event())
            found = self._engine.image(image)
        except SandboxError as error:
            raise ImportProblem(f"image {image} cannot be had: {error}") from error
        if found is None:
            raise ImportProblem(f"image {image} is gone from {self._engine.host.url}")
        return found

    def _take(self, image: str, workdir: str, place: Path) -> None:
        """Unpack beside `place`, and rename when all is there."""
        self._kept.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".new.", dir=self._kept))
        try:
            (scratch / "repo").mkdir()
            try:
                with self._engine.archive(image, workdir, labels(current_owner())) as pieces:
                    notes = unpack_snapshot(io.BufferedReader(_Pieces(pieces)), scratch / "repo")
            except SandboxError as error:
                raise ImportProblem(f"{workdir} cannot be taken out of image {image}: {error}") from error
            (scratch / "notes").write_text("".join(f"{note}\n" for note in notes), encoding="utf-8")
            os.rename(scratch, place)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


class _Pieces(io.RawIOBase):
    """The bytes of an iterator as a file that is read from its beginning to its end."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count
