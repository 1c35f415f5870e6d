"""Engines of dead runs on a cluster that outlives them: found by name and owner, ended together.

A run that is started again finds its engines and uses them; orphans are those whose run nobody has started again. A
private cluster ends with its run, and has none.
"""

import asyncio
import os
from functools import partial

from harness.reaper import Sweep
from harness.sandbox.leftovers import Leftover
from harness.sandbox.owner import PREFIX
from tasks.reattach import end_engines, may_live
from trainer.ownership import forget_owner, owned_runs, owner_of
from trainer.placement import find_numbered, ray_cluster

BACKEND = "ray"


def sweep_engines(sweep: Sweep, *, apply: bool) -> None:
    """Add to `sweep` the engines of dead runs on the cluster at `RAY_ADDRESS`, if there is one; end them with `apply`.

    Blocks. Engines whose run's folder cannot be seen from this host are left alone.
    """
    if not os.environ.get("RAY_ADDRESS"):  # else a cluster would be made to look into
        return
    try:
        with ray_cluster():
            orphans = [orphan for name in owned_runs() if (orphan := _orphan(name)) is not None]
            sweep.found += orphans
            for orphan in orphans if apply else []:
                try:
                    orphan.remove()
                except Exception as error:
                    sweep.failed[orphan.name] = f"{type(error).__name__}: {error}"
    except Exception as error:
        sweep.unreachable[BACKEND] = str(error) or type(error).__name__


def _orphan(run_name: str) -> Leftover | None:
    """The engines of this name, if they are up and their run is dead."""
    engines = [place for place in _places(run_name) if find_numbered(place)]
    owner = owner_of(run_name)
    if not engines or owner is None or may_live(owner):
        return None
    project, _, experiment = run_name.partition("/")
    labels = {PREFIX + "project": project, PREFIX + "run": experiment}
    return Leftover(BACKEND, "engines", run_name, labels, None, partial(_end, run_name))


def _end(run_name: str) -> None:
    owner = owner_of(run_name)
    if owner is not None and not may_live(owner):
        asyncio.run(end_engines(run_name))
        forget_owner(run_name)


def _places(run_name: str) -> tuple[str, str]:
    return f"{run_name}/learner", f"{run_name}/replica"
