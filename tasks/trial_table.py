"""What the trials of a step came to, one row a trial: read from their folders, and kept as one small file.

A report over days of training would open a million files. record_step writes the table once a step's trials have all
been graded; `trials.parquet` says nothing that trial.json and verdict.json do not say, so it can be made again.
"""

import json
import math
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.journal import Journal, write_table

TABLE = "trials.parquet"

STAGES = ("queue", "retries", "sandbox_start", "agent", "generate", "patch", "sandbox_stop", "grading")
"""Stages of a trial in seconds; `generate`, the policy's part, is inside `agent`."""

TRIAL_SCHEMA = pa.schema(
    [
        ("session_id", pa.string()),
        ("group_id", pa.string()),
        ("task_id", pa.string()),
        ("scaffold", pa.string()),
        ("started_at", pa.float64()),
        ("attempt", pa.int64()),
        ("turns", pa.int64()),
        ("response_length", pa.int64()),
        ("segments", pa.int64()),
        ("outcome", pa.string()),
        ("error", pa.string()),
        ("status", pa.string()),
        ("reward", pa.float64()),
        ("reason", pa.string()),
        ("protected", pa.bool_()),
        *((stage, pa.float64()) for stage in STAGES),
    ]
)

_MAX_ID, _MAX_TEXT = 300, 600
_MAX_BYTES = 64 * 2**20
_MAX_WHOLE = 2**53


def write_trial_table(journal: Journal, label: str) -> Path:
    """Write the table of a step or an evaluation whose trials have all ended.

    Raises:
        ValueError: a trial's files are damaged.
    """
    table, problems = read_trial_folders(journal.trials_dir(label))
    if problems:
        raise ValueError(f"{label}: {problems[0]}")
    path = journal.stage_dir(label) / TABLE
    write_table(path, table)
    return path


def read_trial_folders(folder: Path) -> tuple[pa.Table, list[str]]:
    """The trials in `folder` that have ended, by name, and what is wrong with those that cannot be read.

    Trials may be ending meanwhile: those whose trial.json is not there yet are not there. Links are not followed.
    """
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for name in _folders(folder):
        try:
            record = read_object(f"{folder}/{name}/trial.json")
            if record is not None:
                rows.append(trial_row(record, read_object(f"{folder}/{name}/verdict.json")))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            problems.append(f"trial {name} cannot be read ({type(error).__name__}: {error})")
    return pa.Table.from_pylist(rows, schema=TRIAL_SCHEMA), problems


def trial_row(record: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> dict[str, Any]:
    """A row of the table, from trial.json and verdict.json. Texts are cut, and hold what UTF-8 can hold.

    Raises:
        KeyError, TypeError, ValueError: these are no such files.
    """
    timings = record.get("timings") or {}
    row: dict[str, Any] = {
        "session_id": _text(record["session_id"], _MAX_ID),
        "group_id": _text(record["group_id"], _MAX_ID),
        "task_id": _text(record["task_id"], _MAX_ID),
        "scaffold": _text(record.get("scaffold") or "", _MAX_ID),
        "started_at": _number(record.get("started_at")),
        "attempt": _whole(record.get("attempt", 1)),
        "turns": _whole(record["turns"]),
        "response_length": _whole(record["response_length"]),
        "segments": _whole(record.get("num_segments", 1)),
        "outcome": _text(record["outcome"], _MAX_ID),
        "error": None if record.get("error") is None else _text(record["error"], _MAX_TEXT),
        "status": None,
        "reward": None,
        "reason": None,
        "protected": None,
        **{stage: _number(timings.get(stage)) for stage in STAGES},
    }
    if verdict is not None:
        row |= {
            "status": _text(verdict["status"], _MAX_ID),
            "reward": _number(verdict["reward"]),
            "reason": _text(verdict["reason"], _MAX_TEXT),
            "protected": bool(verdict.get("protected", True)),
            "grading": _number(verdict.get("seconds")),
        }
    return row


def read_object(path: str) -> dict[str, Any] | None:
    """The JSON object in a plain file, None if there is no such file. A link is not followed.

    Raises:
        OSError: it is no plain file, or cannot be read.
        ValueError: it holds no JSON object, or more than 64 MiB.
        RecursionError: it is nested too deep.
    """
    try:
        # a pipe in the place of the file would wait for ever
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            raise ValueError(f"{os.path.basename(path)} is no file, or larger than {_MAX_BYTES >> 20} MiB")
        data = file.read()
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"{os.path.basename(path)} holds a {type(value).__name__}, not an object")
    return value


def _folders(folder: Path) -> Iterable[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _text(value: Any, limit: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is no text")
    cut = value if len(value) <= limit else value[: limit - 1] + "…"
    return cut if cut.isascii() else cut.encode("utf-8", "replace").decode("utf-8")


def _whole(value: Any) -> int:
    number = int(value)
    if abs(number) > _MAX_WHOLE:
        raise ValueError(f"{value!r:.60} is no count")
    return number


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None
