"""Engines that are up before a run starts any: whose they are, which of them the run can go on with, the others' end.

Engines outlive the flow that started them where the cluster does. A flow that is started again finds them by name, and
asks each before it relies on it: a learner's ranks for their boot and their update, a replica for a token.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.sandbox.owner import this_host
from tasks.lease import last_holder, living_holder
from tasks.progress import Event, emit
from tasks.recover import astray
from tasks.run import RunRef
from tasks.wanted_replicas import wanted_replicas
from trainer.algorithms.config import AlgorithmConfig
from trainer.learner.bundles import release
from trainer.learner.calls import RankFailure, answers
from trainer.learner.checkpoint import list_checkpoints
from trainer.learner.config import LearnerConfig
from trainer.learner.group import LearnerGroup
from trainer.ownership import Owner, note_owner, owner_of
from trainer.placement import end_numbered, find_numbered
from trainer.serving.census import Standing, boots_of, standings_of
from trainer.serving.config import ServingConfig


class EnginesTaken(ValueError):
    """A living run in another folder has engines of this name; the message says which, and the mend."""


async def claim(run: RunRef) -> None:
    """From now on the engines of this run's name are those of this run, which holds the lease of its folder.

    Those that another run of this name has left, which has died, are ended: their weights are not this run's, whichever
    version of them they serve.

    Raises:
        EnginesTaken: they are another run's, which lives.
    """
    me, other = _me(run), owner_of(run.name)
    if other is not None and other.nonce != me.nonce:
        if (other.folder, other.host) != (me.folder, me.host) and may_live(other):
            raise EnginesTaken(
                f"this cluster has engines named {run.name} of the run in {other.folder} on "
                f"{other.host.rpartition('.')[0]}, which is at work or cannot be seen from here: "
                "choose another experiment name"
            )
        if find_numbered(_learner(run.name)) or find_numbered(_replica(run.name)):
            emit(Event("note", "", f"engines that the run in {other.folder} has left are ended"))
            await end_engines(run.name)
        if owner_of(run.name) != other:
            return await claim(run)  # a third run was faster
    note_owner(run.name, me)


def owns(run: RunRef) -> bool:
    """Whether the engines of this run's name are its own, or nobody's."""
    owner = owner_of(run.name)
    return owner is None or owner.nonce == run.nonce


def may_live(owner: Owner) -> bool:
    """Whether the run that owns engines may be at work; False only if it is certain that it is not."""
    folder = Path(owner.folder)
    if owner.host != this_host():
        holder = last_holder(folder)
        if holder is None or holder.host != owner.host:
            return True  # that folder is this host's own, or there is none
    return living_holder(folder) is not None


async def faults_of_engines(
    run: RunRef, model: Path, serving: ServingConfig, learner: LearnerConfig, algorithm: AlgorithmConfig
) -> list[str]:
    """What is wrong with the engines that the run should have; empty if nothing is.

    Replicas that leave, or that nobody wants any more, are not among them: whatever they are, it does no harm.
    """
    faults = [] if find_numbered(_learner(run.name)) else ["no learner is alive"]
    if fault := await fault_of_learner(run, model, learner, algorithm):
        faults.append(f"learner: {fault}")
    wanted = range(wanted_replicas(run, serving))
    missing = set(wanted) - find_numbered(_replica(run.name)).keys()
    faults += [f"replica {number} is not alive" for number in sorted(missing)]
    ill = await faults_of_replicas(run.name, model, serving)
    return faults + [f"replica {number}: {fault}" for number, fault in ill.items() if number in wanted]


async def end_unfit(
    run: RunRef, model: Path, serving: ServingConfig, learner: LearnerConfig, algorithm: AlgorithmConfig
) -> None:
    """End those of the run's engines that are up and that it cannot go on with; a start then boots them anew."""
    if serving.colocated and await faults_of_engines(run, model, serving, learner, algorithm):
        # who shares devices boots in turn
        await end_engines(run.name)
        return
    await end_unfit_learner(run, model, learner, algorithm)
    await end_unfit_replicas(run, model, serving)


async def end_unfit_learner(run: RunRef, model: Path, learner: LearnerConfig, algorithm: AlgorithmConfig) -> None:
    """`end_unfit` of a learner alone."""
    if fault := await fault_of_learner(run, model, learner, algorithm):
        emit(Event("note", "", f"the learner that is up is ended: {fault}"))
        await end_learner(run.name)


async def end_unfit_replicas(run: RunRef, model: Path, serving: ServingConfig) -> None:
    """`end_unfit` of replicas alone; so are those ended that leave, or that nobody wants any more."""
    found, wanted = find_numbered(_replica(run.name)), wanted_replicas(run, serving)
    faults = {number: f"it is one too many: {wanted} are wanted" for number in found if number >= wanted}
    faults |= dict.fromkeys(await _leaving(found), "it is leaving")
    faults |= await faults_of_replicas(run.name, model, serving)
    for number, fault in faults.items():
        emit(Event("note", "", f"replica {number} that is up is ended: {fault}"))
    await end_numbered(_replica(run.name), faults)


async def end_engines(run_name: str) -> None:
    """End a learner and all replicas."""
    await end_learner(run_name)
    await end_numbered(_replica(run_name), find_numbered(_replica(run_name)))


async def end_learner(run_name: str) -> None:
    """End all ranks of a learner, and give their place back."""
    await end_numbered(_learner(run_name), find_numbered(_learner(run_name)))
    release(_learner(run_name))


async def faults_of_replicas(run_name: str, model: Path, serving: ServingConfig) -> dict[int, str]:
    """Why replicas that are up cannot be used, by number: they answer no probe, or were booted with something else.

    One that leaves has no faults.
    """
    found, faults = find_numbered(_replica(run_name)), dict[int, str]()
    leaving = await _leaving(found)
    told = await boots_of({number: actor for number, actor in found.items() if number not in leaving})
    for number, boot in told.items():
        if isinstance(boot, Exception):
            faults[number] = _first_line(boot)
        elif (boot.model, boot.config) != (str(model), serving):
            faults[number] = "it was booted with other settings"
    return faults


async def _leaving(actors: Mapping[int, Any]) -> set[int]:
    told = await standings_of(actors)
    return {number for number, standing in told.items() if isinstance(standing, Standing) and standing.leaving}


async def fault_of_learner(run: RunRef, model: Path, config: LearnerConfig, algorithm: AlgorithmConfig) -> str | None:
    """Why the ranks that are up cannot be used; None if they can, or there are none."""
    found = find_numbered(_learner(run.name))
    if not found:
        return None
    if list(found) != list(range(config.ranks)):
        return f"of {config.ranks} ranks only {sorted(found)} are alive"
    try:
        # an update that a killed flow has begun is finished first
        async with asyncio.timeout(config.timeout):
            booted = await answers([actor.booted.remote() for actor in found.values()], "booted")
            updates = await answers([actor.state.remote() for actor in found.values()], "state")
    except TimeoutError:
        return f"it gave no answer for learner.timeout, {config.timeout:g} s"
    except RankFailure as failure:
        return _first_line(failure)
    if any(told != (str(model), config, algorithm) for told in booted):
        return "it was booted with other settings"
    if len(set(updates)) != 1:
        return f"its ranks have applied different numbers of updates: {updates}"
    newest = max(run.journal.finished_steps("update.json"), default=0)
    if any(checkpoint.step <= newest for checkpoint in list_checkpoints(run.journal.checkpoints)):
        return None
    where = await astray(run, LearnerGroup(run.name, list(found.values())), updates[0], newest)
    return None if where is None else f"it {where}, the journal is at {newest}, and no checkpoint leads back"


def _me(run: RunRef) -> Owner:
    return Owner(str(run.journal.root), this_host(), run.nonce)


def _learner(run_name: str) -> str:
    return f"{run_name}/learner"


def _replica(run_name: str) -> str:
    return f"{run_name}/replica"


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}"
