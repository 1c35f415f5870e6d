"""Prepares agents that are Python programs: a folder with an interpreter of its own and the agent's pinned packages.

The interpreter is a copy, since what Python an image has is nobody's choice, and the repository under repair must not
see the agent's packages. The folder may be moved and mounted anywhere:

    bin/python3     lib/pythonX.Y/     the interpreter and its standard library
    native/         shared libraries that these need, beside the C library
    site/           the agent and all it imports
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.scaffolds.runtimes import Runtime, RuntimeBuildError, Say

_TOO_MUCH = (
    *("__pycache__", "site-packages", "dist-packages", "config-*", "*.a", "test", "tests"),
    *("ensurepip", "idlelib", "lib2to3", "tkinter", "_tkinter*", "turtledemo"),
)
_C_LIBRARY = re.compile(r"(ld-linux.*|lib(c|m|dl|pthread|rt|util|resolv|nsl|anl))\.so\.\d+$")
"""What must be the image's own, since it goes with the image's loader."""

_FACTS = """\
import json, sys, sysconfig
print(json.dumps([sys.version_info[:2], sys.base_prefix, sysconfig.get_path("stdlib")]))
"""

_START = """\
import os, site, sys
os.environ.pop("LD_LIBRARY_PATH", None)
site.addsitedir(os.path.join(sys.prefix, "site"))
"""
"""Comes before an agent's own start. What the loader needed it has read already; left in the environment, it would bend
every program that the agent starts."""

_TELL = """\
import importlib, importlib.metadata
importlib.import_module(sys.argv[2])
print(importlib.metadata.version(sys.argv[1]))
"""


@dataclass(frozen=True)
class PythonRuntime(Runtime):
    """An agent from PyPI: the distribution `package`, of which `module` is what a trial imports.

    `pins` is a requirements file with every package, `oldest` the Python that they need.
    """

    package: str
    module: str
    pins: Path
    oldest: tuple[int, int]

    @property
    def packages(self) -> tuple[str, ...]:
        lines = (line.strip() for line in self.pins.read_text().splitlines())
        return (f"python>={_dotted(self.oldest)}", *(line for line in lines if line and not line.startswith("#")))

    def build(self, folder: Path, say: Say) -> None:
        python = find_interpreter(self.oldest)
        say(f"copying Python {_dotted(python.version)} from {python.prefix}")
        copy_interpreter(python, folder)
        say(f"fetching {len(self.packages) - 1} packages")
        install_packages(python, self.pins, folder / "site")
        # Wheels bring all libraries but those that every Linux has, and small images have not even these.
        copy_libraries((folder / "site").rglob("*.so"), folder / "native", all_needed=False)
        say("compiling them")
        compile_all(folder)

    def version_command(self, root: str) -> tuple[Sequence[str], dict[str, str]]:
        return python_start(root, _TELL, [self.package, self.module]), python_environment(root)


def python_start(root: Path | str, program: str, arguments: Sequence[str] = ()) -> list[str]:
    """How to run the text `program` with the agent's packages; what it starts sees nothing of the runtime.

    `root` is where the runtime is mounted. `os` and `sys` are imported already.
    """
    return [*_python(root), "-c", _START + program, *arguments]


def python_environment(root: Path | str) -> dict[str, str]:
    """The variables that the interpreter below `root` needs."""
    return {"LD_LIBRARY_PATH": f"{root}/native"}


@dataclass(frozen=True)
class Interpreter:
    """A Python of this machine."""

    program: Path
    version: tuple[int, int]
    prefix: Path
    stdlib: Path


def find_interpreter(oldest: tuple[int, int]) -> Interpreter:
    """The running interpreter if it is new enough, else the oldest one found that is.

    Raises:
        RuntimeBuildError: there is none.
    """
    names = [f"python3.{minor}" for minor in range(oldest[1], oldest[1] + 4)]
    for program in [sys.executable, *filter(None, map(shutil.which, names)), *_of_pyenv(names)]:
        done = subprocess.run([program, "-I", "-c", _FACTS], capture_output=True, text=True, check=False)
        if done.returncode == 0:  # a stand-in of a version manager may have no such Python
            version, prefix, stdlib = json.loads(done.stdout)
            if tuple(version) >= oldest:
                own_program = Path(prefix, "bin", f"python{_dotted(version)}")
                return Interpreter(own_program, tuple(version), Path(prefix), Path(stdlib))
    raise RuntimeBuildError(
        f"this agent needs Python >= {_dotted(oldest)}; install python{_dotted(oldest)} and put it on PATH"
    )


def copy_interpreter(python: Interpreter, folder: Path) -> None:
    """Copy program, standard library and shared libraries to where a moved interpreter finds them by itself.

    Raises:
        RuntimeBuildError: they cannot be found or copied.
    """
    program = folder / "bin" / "python3"
    library = folder / "lib" / f"python{_dotted(python.version)}"
    program.parent.mkdir()
    try:
        shutil.copy(python.program, program)
        shutil.copytree(python.stdlib, library, ignore=shutil.ignore_patterns(*_TOO_MUCH))
    except OSError as error:
        raise RuntimeBuildError(f"the Python in {python.prefix} cannot be copied: {error}") from error
    modules = sorted(library.glob("lib-dynload/*.so"))
    copy_libraries([program, *modules], folder / "native", {"LD_LIBRARY_PATH": str(python.prefix / "lib")})


def copy_libraries(
    programs: Iterable[Path], folder: Path, environment: Mapping[str, str] | None = None, *, all_needed: bool = True
) -> None:
    """Copy to `folder` the shared libraries that `programs` load, except those of the C library and of the runtime.

    `environment` is what the programs would be started with here. Unless `all_needed`, what is missing is left out.

    Raises:
        RuntimeBuildError: a library is missing here.
    """
    folder.mkdir(exist_ok=True)
    listed = _run(["ldd", *map(str, programs)], "the shared libraries cannot be listed", environment, all_needed)
    found = [line.split() for line in listed.splitlines() if "=>" in line]
    missing = sorted({words[0] for words in found if words[2] == "not"})
    if missing and all_needed:
        raise RuntimeBuildError(f"shared libraries are missing on this machine: {', '.join(missing)}; install them")
    for path in sorted({Path(words[2]) for words in found if words[2].startswith("/")}):
        if not _C_LIBRARY.match(path.name) and not path.is_relative_to(folder.parent):
            shutil.copy(path, folder / path.name)


def install_packages(python: Interpreter, pins: Path, site: Path) -> None:
    """Install exactly what the requirements file `pins` lists, for `python`, into the folder `site`.

    Raises:
        RuntimeBuildError: the packages cannot be had.
    """
    pip = [sys.executable, "-m", "pip", "--python", str(python.program), "--disable-pip-version-check", "install"]
    options = ["--quiet", "--no-compile", "--no-deps", "--target", str(site), "--requirement", str(pins)]
    _run([*pip, *options], f"the packages of {pins.name} cannot be installed; check the network and pip's settings")
    shutil.rmtree(site / "bin", ignore_errors=True)  # scripts that name this machine's interpreter


def compile_all(folder: Path) -> None:
    """Compile all modules of a runtime, which is read-only later. What does not compile is not of this version."""
    options = ["-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    command = [*_python(folder), *options, str(folder / "site"), str(folder / "lib")]
    subprocess.run(command, env=python_environment(folder), capture_output=True, check=False)


def _python(root: Path | str) -> list[str]:
    return [f"{root}/bin/python3", "-I", "-B"]


def _of_pyenv(names: Sequence[str]) -> list[str]:
    versions = Path.home() / ".pyenv" / "versions"
    return [str(path) for name in names for path in sorted(versions.glob(f"*/bin/{name}"))]


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _run(command: Sequence[str], failure: str, environment: Mapping[str, str] | None = None, check: bool = True) -> str:
    env = None if environment is None else dict(environment)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    except OSError as error:
        raise RuntimeBuildError(f"{failure}: {error}") from error
    if check and done.returncode != 0:
        raise RuntimeBuildError(f"{failure}: {done.stderr.strip()[-800:]}")
    return done.stdout
