"""A run's structured log: one JSON object a line, with the flow run, the Prefect task and the trial that it is of.

`logs/events.jsonl` grows to a bound and is then renamed `events.jsonl.1` and so on; the oldest is dropped.
"""

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from prefect.context import FlowRunContext, TaskRunContext

from harness.sandbox.owner import current_trial
from tasks.progress import Event, watching
from tasks.run import RunRef

NAME = "events.jsonl"
OWN = ("flows", "tasks", "trainer", "harness", "deployments")
"""The loggers whose records are kept, with all below them."""
MAX_BYTES = 32 << 20
FILES = 4
"""Old files kept beside the present one."""

_progress = logging.getLogger("testgrad.progress")
"""What people are shown anyway goes into the file alone."""
_progress.propagate = False
_progress.setLevel(logging.INFO)


@contextmanager
def logging_to(run: RunRef) -> Iterator[Path]:
    """Keep what the project's loggers say within the block, and the notes and stages that people are shown."""
    run.journal.logs.mkdir(parents=True, exist_ok=True)
    path = run.journal.logs / NAME
    handler = RotatingFileHandler(path, maxBytes=MAX_BYTES, backupCount=FILES, encoding="utf-8", delay=True)
    handler.addFilter(_place)
    handler.setFormatter(_Lines(run.name))
    loggers = [_progress, *map(logging.getLogger, OWN)]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with watching(_tell):
            yield path
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()


def _tell(event: Event) -> None:
    """Progress of single trials stays out: the journal has them."""
    if event.kind in ("note", "stage", "step", "eval"):
        text = event.text or f"{event.kind} {event.label} {event.done}".strip()
        _progress.info("%s", text, extra={"label": event.label})


def _place(record: logging.LogRecord) -> bool:
    """Note, in the thread and context of the caller, whose record this is."""
    flow, task = FlowRunContext.get(), TaskRunContext.get()
    record.flow_run = flow.flow_run.name if flow is not None and flow.flow_run is not None else None
    record.task_run = task.task_run.name if task is not None else None
    record.trial = current_trial()
    return True


class _Lines(logging.Formatter):
    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": moment, "level": record.levelname, "logger": record.name, "run": self.run,
            "message": record.getMessage(),
        }  # fmt: skip
        for name in ("flow_run", "task_run", "trial", "label"):
            if value := getattr(record, name, None):
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def read_log(folder: Path, follow: bool = False, poll: float = 0.3) -> Iterator[dict[str, Any]]:
    """The records of a run's log folder, oldest first, those of renamed files included; with `follow`, for ever.

    Lines that are no JSON objects are left out: the last may be half written, or cut off by a crash.
    """
    for number in range(FILES, 0, -1):
        yield from _records(folder / f"{NAME}.{number}")
    yield from _follow(folder / NAME, poll) if follow else _records(folder / NAME)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                yield from _record(line)


def _follow(path: Path, poll: float) -> Iterator[dict[str, Any]]:
    """The records of `path` and of every file that takes its place."""
    while True:
        while not path.is_file():
            time.sleep(poll)
        with path.open(encoding="utf-8", errors="replace") as lines:
            inode = os.fstat(lines.fileno()).st_ino
            partial = ""
            while True:
                partial += lines.readline()
                if partial.endswith("\n"):
                    yield from _record(partial)
                    partial = ""
                elif _replaced(path, inode):
                    for line in lines:  # written between the last look and the renaming
                        partial += line
                        yield from _record(partial)
                        partial = ""
                    break
                else:
                    time.sleep(poll)


def _replaced(path: Path, inode: int) -> bool:
    try:
        return path.stat().st_ino != inode
    except FileNotFoundError:  # just renamed, and none in its place yet
        return False


def _record(line: str) -> list[dict[str, Any]]:
    try:
        record = json.loads(line)
    except ValueError:
        return []
    return [record] if isinstance(record, dict) else []
