"""Rows of local files: parquet, JSON lines or JSON, one file or a folder of them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.pool.index import PoolError

_BATCH = 64  # rows of these sets can be megabytes each


@dataclass(frozen=True)
class RawRow:
    """`origin` is file#number, numbers from 1."""

    values: Mapping[str, Any]
    origin: str


@dataclass(frozen=True)
class BadRow:
    """A place in a file where no row can be read."""

    origin: str
    reason: str


def read_rows(source: Path) -> Iterator[RawRow | BadRow]:
    """The rows of a file, or of all data files in a folder by name.

    Raises:
        PoolError: there is no such file, none in the folder, or it is of another kind.
    """
    if not source.exists():
        raise PoolError(f"{source}: no such file or folder; download the data set first, and give its place")
    files = [source]
    if source.is_dir():
        files = sorted(file for file in source.rglob("*") if file.suffix in _READERS and file.is_file())
        if not files:
            raise PoolError(f"{source}: no {', '.join(_READERS)} files in it; give the folder or file of the data set")
    for file in files:
        if file.suffix not in _READERS:
            raise PoolError(f"{file}: rows are read from {', '.join(_READERS)} only; convert it to one of these")
        for number, values in enumerate(_READERS[file.suffix](file), start=1):
            origin = f"{file.name}#{number}"
            if isinstance(values, str):
                yield BadRow(origin, values)
            elif isinstance(values, Mapping):
                yield RawRow(values, origin)
            else:
                yield BadRow(origin, f"a {type(values).__name__}, not a table of columns")


def _read_parquet(file: Path) -> Iterator[Any]:
    try:
        for batch in pq.ParquetFile(file).iter_batches(_BATCH):
            yield from batch.to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise PoolError(f"{file} is not a readable parquet file ({error}); download it again") from error


def _read_lines(file: Path) -> Iterator[Any]:
    with file.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if line.strip():
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError) as error:
                    yield f"not JSON: {error}"


def _read_json(file: Path) -> Iterator[Any]:
    try:
        stored = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise PoolError(f"{file} is not JSON ({error}); JSON lines must end in .jsonl") from error
    if isinstance(stored, Mapping) and isinstance(stored.get("rows"), list):
        stored = [row["row"] if isinstance(row, Mapping) and "row" in row else row for row in stored["rows"]]
    elif isinstance(stored, Mapping) and stored and all(isinstance(value, Mapping) for value in stored.values()):
        stored = [{"instance_id": key, **value} for key, value in stored.items()]
    yield from stored if isinstance(stored, list) else [stored]


_READERS = {".parquet": _read_parquet, ".jsonl": _read_lines, ".ndjson": _read_lines, ".json": _read_json}
