"""What shows in the process and its files: a run that lives and does nothing."""

import time

from flows.diagnosis.causes import LikelyCause
from flows.diagnosis.facts import RunFacts
from flows.diagnosis.signatures import Signature, signature
from flows.diagnosis.state import RunState, State, cpu_seconds
from flows.preflight.findings import Level

SILENCE = 1800.0
"""Seconds without a written file after which a run that is at work is looked at."""
PATIENCE = 2.0
"""Times the longest of what may rightly take so long: a trial's budget, an update, a step that was timed."""
_SAMPLE = 0.5
_IDLE_SHARE = 0.05
_DEFAULT_AGENT_TIMEOUT = 1800.0


@signature("deadlock")
def deadlock(facts: RunFacts, state: RunState) -> Signature | None:
    """Its process lives, and nothing has been written for longer than anything it does may take."""
    if state.state not in (State.RUNNING, State.WAITING) or facts.changed_at is None:
        return None
    if facts.process is not None and facts.process.work != "train":  # what others write is not looked at
        return None
    silent, allowed = facts.now - facts.changed_at, _allowed(facts)
    if silent <= allowed:
        return None
    stage = state.stage.text if state.stage is not None else "between steps"
    told = [f"nothing was written for {silent / 60:.0f} min, and {allowed / 60:.0f} min are allowed for", f"at {stage}"]
    causes = []
    used = _used_share(state.pids)
    if used is not None:
        told.append(f"its processes used {used:.0%} of a core just now")
    if used is not None and used < _IDLE_SHARE:
        causes.append(
            LikelyCause(
                "it waits for something that will not come: an actor that died, a rank that never joined, a lock",
                "its processes live and do not compute",
                f"py-spy dump --pid {state.pids[0]} shows where; stop it and start it again, it goes on",
            )
        )
    else:
        shown = (
            "whether they compute is not known" if used is None else "its processes compute, and nothing comes of it"
        )
        causes.append(
            LikelyCause(
                "it is far slower than it was, or goes round in circles",
                shown,
                "read the end of the logs; if they stand still as well, stop it and start it again",
            )
        )
    return Signature("deadlock", Level.FATAL, f"alive, and silent for {silent / 60:.0f} min", {}, causes, told)


def _allowed(facts: RunFacts) -> float:
    longest = [value for metric in ("timing_s/update_actor", "timing_s/update_weights", "timing_s/step")
               for _, value in facts.series(metric)]  # fmt: skip
    agent = facts.setting("scaffold.agent_timeout", _DEFAULT_AGENT_TIMEOUT)
    budget = float(agent) if isinstance(agent, int | float) else _DEFAULT_AGENT_TIMEOUT
    return max(SILENCE, PATIENCE * max([budget, *longest]))


def _used_share(pids: list[int]) -> float | None:
    """CPU seconds a second that the processes use, None if they cannot be asked."""
    before = cpu_seconds(pids)
    if before is None:
        return None
    time.sleep(_SAMPLE)
    after = cpu_seconds(pids)
    return None if after is None else max(after - before, 0.0) / _SAMPLE


@signature("dead")
def dead(facts: RunFacts, state: RunState) -> Signature | None:
    """Its process is gone in the middle of the work."""
    if state.state is not State.DEAD or facts.process is None:
        return None
    stage = state.stage.text if state.stage is not None else "between steps"
    cause = LikelyCause(
        "its process was killed, or the machine went down",
        f"process {facts.process.pid} still holds the lease, and does not live any more",
        "dmesg tells of the kernel's killing for memory; the same command goes on from the journal, and no trial that "
        "ended is run again",
    )
    return Signature("dead", Level.FATAL, f"gone at {stage}", {}, [cause])


@signature("failed")
def failed(facts: RunFacts, state: RunState) -> Signature | None:
    """Its process ended with an error."""
    if state.state is not State.FAILED:
        return None
    cause = LikelyCause("as its error says", state.why or "no message", "mend that; the same command goes on")
    return Signature("failed", Level.FATAL, "ended with an error", {}, [cause])
