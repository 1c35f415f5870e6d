"""Where a package comes from: a source distribution by name and version, a folder, or a commit of a git checkout."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from typing import Literal

from harness.pool.git import GitError, run_git
from harness.pool.importers.repos import RepoFolder
from harness.pool.importers.values import ImportProblem
from harness.pool.snapshot import NEVER_SENT

_PINNED = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.!+-]+")
_DOWNLOAD_SECONDS = 600


class SourceError(ValueError):
    """A package that cannot be had, or is no source distribution with tests; the message names it and the mend."""


@dataclass(frozen=True)
class PackageSource:
    """`spec` is NAME==VERSION for a `package`, a folder for `folder`, FOLDER@COMMIT for `git`."""

    kind: Literal["package", "folder", "git"]
    spec: str

    @classmethod
    def package(cls, spec: str) -> "PackageSource":
        """A source distribution, by pip.

        Raises:
            SourceError: the version is not given, so that the pool could not be built again.
        """
        if not _PINNED.fullmatch(spec):
            raise SourceError(f"package {spec!r} names no exact version; write it as name==version")
        return cls("package", spec)

    @classmethod
    def git(cls, spec: str) -> "PackageSource":
        """A commit of a local checkout or bare clone.

        Raises:
            SourceError: there is no commit in it, or no such repository.
        """
        folder, at, commit = spec.rpartition("@")
        if not at or not folder or not commit:
            raise SourceError(f"git source {spec!r} names no commit; write it as folder@commit")
        try:
            full = run_git(Path(folder), "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
        except (GitError, OSError) as error:
            raise SourceError(f"{folder} has no commit {commit}; fetch it there ({error})") from error
        return cls("git", f"{Path(folder).resolve()}@{full.decode().strip()}")

    @classmethod
    def folder(cls, spec: str) -> "PackageSource":
        """A folder as it is now.

        Raises:
            SourceError: there is none.
        """
        if not Path(spec).is_dir():
            raise SourceError(f"{spec}: no such folder; give one with a package and its tests")
        return cls("folder", str(Path(spec).resolve()))

    @property
    def label(self) -> str:
        """What people call it."""
        return self.spec if self.kind == "package" else Path(self.spec.partition("@")[0]).name


@dataclass(frozen=True)
class SourceTree:
    """A package's files on this machine. `requires` are its own requirements, `digest` is of all its files."""

    folder: Path
    name: str
    version: str
    digest: str
    origin: str
    requires: tuple[str, ...]


def fetch(source: PackageSource, cache: Path) -> SourceTree:
    """The files of `source` below the folder `cache`; a package or a commit is fetched once.

    Raises:
        SourceError: it cannot be had.
    """
    key = hashlib.sha256(f"{source.kind} {source.spec}".encode()).hexdigest()[:16]
    target = cache / f"{source.label.replace('==', '-')}-{key}"
    if source.kind == "folder":
        shutil.rmtree(target, ignore_errors=True)  # it may have changed since
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".new.", dir=cache))
        try:
            tree = partial / "tree"
            _WAYS[source.kind](source.spec, tree)
            os.rename(tree, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    name, version, requires = _metadata(target, source)
    return SourceTree(target, name, version, tree_digest(target), f"{source.kind} {source.label}", requires)


def tree_digest(folder: Path) -> str:
    """Digest of the names and contents of all files below `folder`."""
    digest = hashlib.sha256()
    for path, file in regular_files(folder):
        data = file.read_bytes()
        digest.update(f"{path}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
    return digest.hexdigest()


def regular_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(relative POSIX path, file) of the files below `folder`, sorted; links and `NEVER_SENT` left out."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in NEVER_SENT and not Path(place, name).is_symlink()]
        files = (Path(place, name) for name in names if name not in NEVER_SENT)
        found += [(file.relative_to(folder).as_posix(), file) for file in files if not file.is_symlink()]
    return iter(sorted(found))


def _download(spec: str, target: Path) -> None:
    place = target.parent / "download"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    # of this package alone: what its metadata is prepared with may come as wheels
    command += ["--no-binary", spec.partition("==")[0].partition("[")[0], "--dest", str(place), spec]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"{spec}: pip did not end within {_DOWNLOAD_SECONDS} s; check the network") from error
    archives = [file for file in place.iterdir() if file.is_file()] if place.is_dir() else []
    if done.returncode != 0 or len(archives) != 1:
        said = "\n".join(line for line in done.stderr.splitlines() if line.strip())[-500:]
        raise SourceError(f"{spec}: pip has no source distribution of it; give a folder or a git checkout\n{said}")
    _unpack(archives[0], target)


def _unpack(archive: Path, target: Path) -> None:
    """Unpack to `target`, without the one folder that a source distribution has at its top."""
    place = target.parent / "unpacked"
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(place)
        else:
            with tarfile.open(archive) as packed_tar:
                packed_tar.extractall(place, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
        raise SourceError(f"{archive.name} cannot be unpacked: {error}") from error
    tops = list(place.iterdir())
    os.rename(tops[0] if len(tops) == 1 and tops[0].is_dir() else place, target)


def _copy(spec: str, target: Path) -> None:
    target.mkdir()
    for path, file in regular_files(Path(spec)):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / path)


def _check_out(spec: str, target: Path) -> None:
    folder, _, commit = spec.rpartition("@")
    target.mkdir()
    try:
        RepoFolder(Path(folder).parent).write(Path(folder).name, commit, target)
    except ImportProblem as error:
        raise SourceError(str(error)) from error


_WAYS = {"package": _download, "folder": _copy, "git": _check_out}


def _metadata(tree: Path, source: PackageSource) -> tuple[str, str, tuple[str, ...]]:
    """Name, version and requirements: as a distribution says, else as pyproject.toml does, else by the source."""
    found = [
        tree / "PKG-INFO",
        *sorted(tree.glob("*.egg-info/PKG-INFO")),
        *sorted(tree.glob("src/*.egg-info/PKG-INFO")),
    ]
    for file in found:
        if file.is_file():
            fields = Parser().parsestr(file.read_text(encoding="utf-8", errors="replace"), headersonly=True)
            requires = fields.get_all("Requires-Dist") or _egg_requires(tree)
            return _safe(fields["Name"] or ""), _safe(fields["Version"] or "0"), tuple(requires)
    if (tree / "pyproject.toml").is_file():
        try:
            project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SourceError(f"{source.label}: pyproject.toml cannot be read: {error}") from error
        if project.get("name"):
            return _safe(project["name"]), _safe(project.get("version", "0")), tuple(project.get("dependencies", ()))
    name, _, version = source.label.partition("==")
    return _safe(name), _safe(version or "0"), ()


def _egg_requires(tree: Path) -> list[str]:
    """Requirements without extras, as older metadata keeps them in a file of their own."""
    for file in (*tree.glob("*.egg-info/requires.txt"), *tree.glob("src/*.egg-info/requires.txt")):
        plain = file.read_text(encoding="utf-8").partition("\n[")[0]
        return [line for line in plain.splitlines() if line.strip() and not line.startswith("[")]
    return []


def _safe(text: str) -> str:
    """A name or a version as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip("-.").lower() or "package"
