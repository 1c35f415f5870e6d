"""Makes the `docker` sandbox's base image from this machine's own files: `python -m deployments.docker.build_base`.

No registry is asked. The image holds a shell, the usual small programs, git and a Python without packages: copies of
what is installed here, with the libraries that each is linked against. `--with NAME` adds an installed distribution,
such as pytest, and what it requires.
"""

import argparse
import hashlib
import importlib.metadata
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import docker

TAG = "testgrad-base:latest"
LABEL = "testgrad.base"
UID = 50_000

# fmt: off
PROGRAMS = [
    "sh", "bash", "env", "cat", "ls", "cp", "mv", "rm", "mkdir", "rmdir", "ln", "chmod", "touch", "head", "tail",
    "wc", "sort", "uniq", "cut", "paste", "tr", "tee", "seq", "sleep", "true", "false", "echo", "printf", "test", "[",
    "expr", "date", "pwd", "id", "whoami", "uname", "basename", "dirname", "readlink", "realpath", "mktemp", "mkfifo",
    "stat", "du", "df", "dd", "truncate", "yes", "timeout", "nohup", "setsid", "kill", "nproc", "sha256sum", "md5sum",
    "base64", "od", "find", "xargs", "grep", "egrep", "fgrep", "sed", "awk", "diff", "cmp", "patch", "tar", "gzip",
    "gunzip", "zcat", "bzip2", "xz", "file", "which", "git",
]
# fmt: on
REQUIRED = {"sh", "env", "cat", "timeout", "git"}
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_SKIPPED = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
}
_LINKS = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
# Empty by now, but programs built elsewhere, such as agents, still ask for them by name.
_C_LIBRARY = ("libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libm.so.6", "libresolv.so.2")
_DATA = ("/usr/share/git-core/templates", "/usr/share/zoneinfo", "/usr/lib/locale/C.utf8", "/etc/ld.so.cache")


class BuildError(RuntimeError):
    """The image cannot be made here; the message names what is missing."""


class Root:
    """A root file system on its way into a tar archive. Every place is written once, files readable by all."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._done: set[str] = set()

    def folder(self, place: str, mode: int = 0o755) -> None:
        place = place.strip("/")
        if place and place not in self._done:
            self.folder(str(PurePosixPath(place).parent) if "/" in place else "")
            self._add(place, tarfile.DIRTYPE, mode)

    def link(self, place: str, target: str) -> None:
        if self._open(place):
            self._add(place.strip("/"), tarfile.SYMTYPE, 0o777, target)

    def text(self, place: str, text: str) -> None:
        if self._open(place):
            self._write(place.strip("/"), text.encode(), 0o644, 0.0)

    def file(self, place: str, source: Path) -> None:
        """Copy the file that `source` is or leads to, with its time, which compiled modules are checked against."""
        place = _merged(place)
        if self._open(place):
            status = source.stat()
            mode = 0o755 if status.st_mode & 0o111 else 0o644
            self._write(place.strip("/"), source.read_bytes(), mode, status.st_mtime)

    def tree(self, place: str, source: Path, skipped: frozenset[str] = frozenset()) -> None:
        for path in sorted(source.rglob("*")):
            relative = path.relative_to(source)
            if skipped.isdisjoint(relative.parts) and path.is_file() and path.suffix not in (".a", ".o"):
                self.file(f"{place}/{relative}", path)

    def _open(self, place: str) -> bool:
        """Whether nothing has been written there; its folder exists afterwards."""
        place = place.strip("/")
        if place in self._done:
            return False
        self.folder(str(PurePosixPath(place).parent) if "/" in place else "")
        return True

    def _write(self, place: str, data: bytes, mode: int, mtime: float) -> None:
        info = self._info(place, tarfile.REGTYPE, mode)
        info.size, info.mtime = len(data), int(mtime)
        self._archive.addfile(info, io.BytesIO(data))

    def _add(self, place: str, kind: bytes, mode: int, target: str = "") -> None:
        info = self._info(place, kind, mode)
        info.linkname = target
        self._archive.addfile(info)

    def _info(self, place: str, kind: bytes, mode: int) -> tarfile.TarInfo:
        self._done.add(place)
        info = tarfile.TarInfo(place)
        info.type, info.mode = kind, mode
        return info


def build(client: "docker.APIClient", tag: str = TAG, packages: tuple[str, ...] = (), force: bool = False) -> bool:
    """Make the image `tag`; False if the engine has it already, made from the same things.

    Raises:
        BuildError: a program or a package is missing here.
    """
    recipe = _recipe(packages)
    if not force and _recipe_of(client, tag) == recipe:
        return False
    repository, _, version = tag.partition(":")
    changes = [f"LABEL {LABEL}={recipe}", f"ENV PATH={_PATH}", "ENV LANG=C.UTF-8", "WORKDIR /workspace"]
    with tempfile.TemporaryFile() as stream:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
            fill(Root(archive), packages)
        stream.seek(0)
        chunks = iter(
            lambda: stream.read(1 << 20), b""
        )  # no file: for one the SDK states a length and chunks all the same
        client.import_image_from_stream(chunks, repository=repository, tag=version or "latest", changes=changes)
    if _recipe_of(client, tag) != recipe:
        raise BuildError(f"the engine did not take the image {tag}")
    return True


def fill(root: Root, packages: tuple[str, ...]) -> None:
    """Write the whole root file system."""
    for name, target in _LINKS.items():
        root.folder(target)
        root.link(name, target)
    for place in ("proc", "sys", "dev", "run", "etc", "var", "home", "opt", "workspace"):
        root.folder(place)
    root.folder("tmp", 0o1777)
    root.folder("var/tmp", 0o1777)
    root.text("etc/passwd", f"root:x:0:0::/:/bin/sh\nsandbox:x:{UID}:{UID}::/tmp:/bin/sh\n")
    root.text("etc/group", f"root:x:0:\nsandbox:x:{UID}:\n")
    root.text("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")
    binaries = [*_programs(root), *_python(root)]
    for library in _libraries(binaries):
        root.file(str(library), library)
        if library.name == "libc.so.6":
            for part in filter(Path.exists, map(library.with_name, _C_LIBRARY)):
                root.file(str(part), part)
    for name in _DATA:
        path = Path(name)
        if path.is_dir():
            root.tree(name, path, frozenset({"right", "posix"}))
        elif path.exists():
            root.file(name, path)
    _packages(root, packages)


def _programs(root: Root) -> list[Path]:
    found = []
    for name in PROGRAMS:
        path = shutil.which(name, path=_PATH)
        if path is None:
            if name in REQUIRED:
                raise BuildError(f"the program {name!r} is not installed here; install it first")
            continue
        source = Path(path).resolve()
        root.file(f"/usr/bin/{name}", source)
        found.append(source)
    return found


def _python(root: Root) -> list[Path]:
    """Copy the running interpreter's base to /usr/local, or leave a system one in /usr; what in it is machine code."""
    prefix, version = Path(sys.base_prefix), f"{sys.version_info.major}.{sys.version_info.minor}"
    target = Path("/usr" if prefix == Path("/usr") else "/usr/local")
    program = Path(sys.base_exec_prefix, "bin", f"python{version}").resolve()
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": str(prefix), "base": str(prefix)}))
    root.file(f"{target}/bin/python{version}", program)
    for name in ("python3", "python"):
        root.link(f"{target}/bin/{name}", f"python{version}")
    inner = target / library.relative_to(prefix)
    skipped = frozenset({*_SKIPPED, *(path.name for path in library.glob("config-*"))})
    root.tree(str(inner), library, skipped)
    root.folder(f"{inner}/site-packages")
    return [program, *sorted((library / "lib-dynload").glob("*.so"))]


def _libraries(binaries: list[Path]) -> Iterator[Path]:
    """The shared libraries that `binaries` are linked against, the loader among them."""
    found: dict[str, None] = {}
    # not an error when it fails: scripts are no binaries
    listed = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        match = re.match(r"\s+(?:\S+ => )?(/\S+) \(0x", line)
        if match:
            found[match.group(1)] = None
        elif "not found" in line:
            raise BuildError(f"a library is missing here: {line.strip()}")
    return map(Path, found)


def _packages(root: Root, names: tuple[str, ...]) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    prefix = "/usr" if sys.base_prefix == "/usr" else "/usr/local"
    site = f"{prefix}/lib/python{version}/" + ("dist-packages" if prefix == "/usr" else "site-packages")
    for distribution in _closure(names):
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts and source.is_file():
                root.file(f"{site}/{file}", source)


def _closure(names: tuple[str, ...]) -> Iterator[importlib.metadata.Distribution]:
    """The named distributions and what they require without extras, as far as it is installed."""
    wanted, seen = list(names), set[str]()
    while wanted:
        name = wanted.pop()
        if re.sub(r"[-_.]+", "-", name).lower() in seen:
            continue
        seen.add(re.sub(r"[-_.]+", "-", name).lower())
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError as error:
            if name in names:
                raise BuildError(f"--with {name}: not installed here; install it first") from error
            continue  # a requirement of another platform or Python
        yield distribution
        for line in distribution.requires or ():
            if "extra ==" not in line:
                wanted.append(re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0])


def _merged(place: str) -> str:
    """`place` on a system whose /bin, /sbin, /lib and /lib64 lie in /usr."""
    parts = PurePosixPath(os.path.normpath("/" + place.strip("/"))).parts
    return str(PurePosixPath("/usr", *parts[1:])) if len(parts) > 1 and parts[1] in _LINKS else "/".join(parts)[1:]


def _recipe(packages: tuple[str, ...]) -> str:
    """A digest of what the image is made from: this file, the interpreter, the programs, the packages."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(repr((sys.version, sys.base_prefix)).encode())
    for name in PROGRAMS:
        path = shutil.which(name, path=_PATH)
        digest.update(repr((name, path and (os.stat(path).st_size, os.stat(path).st_mtime_ns))).encode())
    for distribution in _closure(packages):
        digest.update(f"{distribution.name}=={distribution.version}\n".encode())
    return digest.hexdigest()[:32]


def _recipe_of(client: "docker.APIClient", tag: str) -> str | None:
    try:
        labels = client.inspect_image(tag)["Config"]["Labels"] or {}
    except docker.errors.ImageNotFound:
        return None
    value = labels.get(LABEL)
    return str(value) if value else None


def main(argv: list[str]) -> int:
    """Build and say what was done."""
    parser = argparse.ArgumentParser(prog="python -m deployments.docker.build_base", description=__doc__)
    parser.add_argument("--tag", default=TAG, help=f"the image's name ({TAG})")
    parser.add_argument(
        "--with", dest="packages", action="append", default=[], metavar="NAME", help="also this package"
    )
    parser.add_argument("--force", action="store_true", help="build although the engine has it")
    options = parser.parse_args(argv)
    try:
        client = docker.APIClient(timeout=300, **docker.utils.kwargs_from_env())
        built = build(client, options.tag, tuple(options.packages), options.force)
        size = client.inspect_image(options.tag)["Size"]
    except (BuildError, docker.errors.DockerException) as error:
        print(f"build_base: {error}", file=sys.stderr)
        return 1
    print(f"{options.tag}: {'built' if built else 'up to date'}, {size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
