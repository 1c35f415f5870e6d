"""How many replicas a run is to have from now on."""

from pathlib import Path

from flows.config import ConfigError
from tasks.journal import ASKED, read_json
from tasks.lease import living_holder
from tasks.wanted_replicas import ask_for_replicas, asked_replicas


class ScaleError(ConfigError):
    """A run cannot have that many replicas; the message says why, and the mend."""


def scale_run(root: Path, run: str, replicas: int) -> str:
    """Ask for so many replicas of a training run. Returns what comes of it.

    Raises:
        ScaleError: there is no such run, or its replicas cannot change.
    """
    folder = root / run
    stored = read_json(folder / "config.json")
    if stored is None:
        raise ScaleError(f"{run}: {root} has no run of this name; `testgrad status` lists those there are")
    if (folder / ASKED).exists() or "serving" not in stored["config"]:
        raise ScaleError(f"{run} is no training run: its replicas are as many as its settings say")
    if replicas < 1:
        raise ScaleError(f"N is {replicas}, but a run needs a replica to go on; name 1 or more, or stop the run")
    serving = stored["config"]["serving"]
    if serving["colocated"]:
        raise ScaleError(
            f"{run} has serving.colocated: its {serving['replicas']} replicas share the learner's GPUs, one each, and "
            "stay as many; a run whose replicas have GPUs of their own can be scaled"
        )
    before = asked_replicas(folder) or serving["replicas"]
    ask_for_replicas(folder, replicas)
    holder = living_holder(folder)
    if holder is None or holder.work != "train":
        return f"{run} is not alive; it is kept for its next start, which begins with {replicas} (before: {before})"
    if replicas == before:
        return f"{run} has {replicas} wanted as before"
    what = (
        f"{replicas - before} more boot beside its trials, and serve from the next sync of weights on"
        if replicas > before
        else f"{before - replicas} of them leave once their turns are answered"
    )
    return f"{run}: {replicas} replicas instead of {before}. It looks every few seconds while trials run; {what}"
