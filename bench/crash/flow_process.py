"""The flow's process: `testgrad train` from the configuration on, with knives in it."""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.crash.cuts import Cut, Knives
from bench.crash.strikes import MARK, strike

CUT = "cut"
"""What a note begins with that tells of a cut; the others are the names of stages."""


@dataclass(frozen=True)
class Start:
    """One start of the flow. `notes` gets a line for each stage that begins and each cut, `log` what is printed.

    `databases` are those that a cut may lock.
    """

    values: dict[str, Any]
    root: Path
    cuts: Sequence[Cut]
    matrix: str
    environment: dict[str, str]
    databases: Sequence[Path]
    log: Path
    notes: Path

    @property
    def folder(self) -> Path:
        return self.root / str(self.values["project"]) / str(self.values["experiment"])


def main(start: Start) -> None:
    """Run the flow to its end, or to the cut that ends it."""
    _print_to(start.log)
    os.environ |= start.environment | {MARK: f"{start.matrix}:flow"}
    from flows.config import parse_config
    from flows.environment import prepare
    from flows.train import train
    from tasks.progress import Event, watching

    prepare(start.root)
    notes = os.open(start.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(text: str) -> None:
        os.write(notes, f"{time.monotonic()} {text}\n".encode())

    def on_event(event: Event) -> None:
        if event.kind == "stage":
            note(event.text)
        print(event.kind, event.label, event.text, event.done or "", flush=True)

    def cut(number: int) -> None:
        note(f"{CUT} {number}")
        strike(start.cuts[number].victim, start.matrix, start.root, start.databases)

    sys.addaudithook(Knives(start.cuts, start.folder, cut))
    with watching(on_event):
        asyncio.run(train(parse_config(start.values, "the crash matrix"), start.root))


def _print_to(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
