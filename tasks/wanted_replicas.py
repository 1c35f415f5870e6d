"""How many replicas a run is to have: as many as its config says, or as somebody has asked for since.

What was asked for lies in the run's folder. A run that is alive follows it while trials run, and one that is started
again begins with it.
"""

from datetime import UTC, datetime
from pathlib import Path

from tasks.journal import JournalError, read_json, write_json
from tasks.run import RunRef
from trainer.serving.config import ServingConfig

NAME = "replicas.json"


def wanted_replicas(run: RunRef, serving: ServingConfig) -> int:
    """How many replicas there are to be now, numbers 0 and up."""
    # who shares devices has one replica for each
    asked = None if serving.colocated else asked_replicas(run.journal.root)
    return serving.replicas if asked is None else asked


def asked_replicas(root: Path) -> int | None:
    """How many replicas of the run in `root` were asked for; None if nobody has asked.

    Raises:
        JournalError: the file does not say so.
    """
    stored = read_json(root / NAME)
    if stored is None:
        return None
    asked = stored.get("replicas") if isinstance(stored, dict) else None
    if type(asked) is not int or asked < 1:
        raise JournalError(
            f"{root / NAME}: replicas is {asked!r}, not a number from 1; remove the file, and the config counts again"
        )
    return asked


def ask_for_replicas(root: Path, replicas: int) -> None:
    """From now on the run in `root` is to have so many replicas."""
    write_json(root / NAME, {"replicas": replicas, "since": datetime.now(UTC).isoformat(timespec="seconds")})
