"""The pytest that graders use where the sandbox's interpreter has none: one archive of this machine's packages.

Python reads modules from a zip archive. Byte code of this Python version lies beside the sources, since compiling them
anew would cost each grading most of a second; another version inside falls back to the sources.
"""

import functools
import importlib._bootstrap_external
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

_NEEDED = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments")
_OPTIONAL = ("py", "exceptiongroup", "tomli", "typing_extensions")  # for Python before 3.11, where they are installed
_SPARE_LEXERS = {"__init__", "_mapping", "diff", "python"}


class RuntimeMissing(RuntimeError):
    """This machine has no pytest to lend; the message names the mend."""


@functools.cache
def runtime_archive() -> bytes:
    """A zip archive with pytest and what it imports.

    Raises:
        RuntimeMissing: a package is not installed.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in (*_NEEDED, *_OPTIONAL):
            for path, source in _sources(name):
                archive.writestr(path, source, zipfile.ZIP_DEFLATED)
                archive.writestr(f"{path}c", _byte_code(path, source), zipfile.ZIP_STORED)
    return buffer.getvalue()


def _sources(name: str) -> Iterator[tuple[str, bytes]]:
    """(path in the archive, source) of the modules of a top-level package or module."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        if name in _NEEDED:
            raise RuntimeMissing(f"package {name} is not installed; run: pip install pytest")
        return
    origin = Path(spec.origin)
    if spec.submodule_search_locations is None:
        yield origin.name, origin.read_bytes()
        return
    for file in sorted(origin.parent.rglob("*.py")):
        # Pygments has a module for each of 500 languages; pytest colours Python.
        if file.parent.name != "lexers" or file.stem in _SPARE_LEXERS:
            yield file.relative_to(origin.parents[1]).as_posix(), file.read_bytes()


def _byte_code(path: str, source: bytes) -> bytes:
    """The content of an unchecked hash-based .pyc file (PEP 552)."""
    code = compile(source, path, "exec", dont_inherit=True)
    digest = importlib.util.source_hash(source)
    return bytes(importlib._bootstrap_external._code_to_hash_pyc(code, digest, False))  # type: ignore[attr-defined]
