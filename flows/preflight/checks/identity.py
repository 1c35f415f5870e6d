"""Which run this is: whether its name serves a resume, and whether it goes on or is going on already."""

import json
import re
from collections.abc import Iterator

from flows.diagnosis.process import holders, read_process
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
    folder = Journal(facts.root / config.project / config.experiment).root
    process = read_process(folder)
    found = holders(folder)
    if process is not None and process.alive:
        yield fatal(
            "experiment",
            config.experiment,
            f"is held by process {process.pid} on {process.host.rpartition('.')[0]} ({process.work})",
            "wait for it, or stop it",
        )
    elif found:
        yield fatal(
            "experiment",
            config.experiment,
            f"is running: process {', '.join(map(str, found))} has its files open",
            "wait for it, or stop it",
        )
    else:
        yield ok("experiment", config.experiment, "nobody holds it, or has its files open")


def _changed(stored: dict[str, object], present: dict[str, object]) -> str:
    old, new = _flat(stored.get("config") or {}), _flat(present)
    ignored = ("schedule.", "evaluation.", "fidelity.", "tracing.", "diagnosis.")
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
