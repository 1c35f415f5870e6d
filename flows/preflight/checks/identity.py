"""Which run this is: whether its name serves a resume, and whether it goes on or is going on already."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, fatal, ok, warn
from flows.preflight.registry import Cost, check
from tasks.journal import Journal, read_json

_STAMP = re.compile(r"(19|20)\d{6}|(19|20)\d\d[-_.]?\d\d[-_.]?\d\d|\d{10,}")


@check("name")
def name(facts: Facts) -> Iterator[Finding]:
    """A name that changes from start to start never goes on where it stopped."""
    experiment = facts.config.experiment
    if _STAMP.search(experiment):
        yield warn(
            "experiment",
            experiment,
            "has a time in it, and a run goes on under the same name only",
            "choose a name without one; the journal keeps the times",
        )
    else:
        yield ok("experiment", experiment, "the same name goes on where it stopped")


@check("journal")
def journal(facts: Facts) -> Iterator[Finding]:
    """What exists under this name must be the same run."""
    config = facts.config
    folder = Journal(facts.root / config.project / config.experiment)
    stored = read_json(folder.root / "config.json")
    if stored is None:
        yield ok("experiment", config.experiment, "a new run")
    elif stored.get("identity") != config.identity():
        yield fatal(
            "experiment",
            config.experiment,
            f"exists with other settings that its results depend on: "
            f"{_changed(stored, json.loads(config.model_dump_json()))}",
            f"choose another name, or remove {folder.root} to start anew",
        )
    else:
        yield ok("experiment", config.experiment, f"goes on after step {max(folder.finished_steps(), default=0)}")


@check("in-flight", Cost.PROBE)
def in_flight(facts: Facts) -> Iterator[Finding]:
    """Nothing may be at work under this name; not asked before training, since engines take a while to end."""
    config = facts.config
    holders = _holders(Journal(facts.root / config.project / config.experiment).root)
    if holders:
        yield fatal(
            "experiment",
            config.experiment,
            f"is running: process {', '.join(map(str, holders))} has its files open",
            "wait for it, or stop it",
        )
    else:
        yield ok("experiment", config.experiment, "nobody has its files open")


def _changed(stored: dict[str, object], present: dict[str, object]) -> str:
    old, new = _flat(stored.get("config") or {}), _flat(present)
    ignored = ("schedule.", "evaluation.", "fidelity.", "tracing.")
    keys = [key for key in new if old.get(key) != new[key] and not key.startswith(ignored)]
    shown = [f"{key} {old.get(key)!r} -> {new[key]!r}" for key in keys[:5]]
    return "; ".join(shown) or "sections were added or removed"


def _flat(values: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(values, dict):
        return {prefix.removesuffix("."): values}
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.")
    return flat


def _holders(folder: Path) -> list[int]:
    """Other processes of this user that have files of the run open: its engine its log, for one."""
    if not folder.is_dir():
        return []
    inside, found = str(folder.resolve()) + os.sep, []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(file.path.startswith(inside) for file in process.open_files()):
                found.append(process.pid)
        except (psutil.Error, OSError):  # it ended, or is somebody else's
            continue
    return found
