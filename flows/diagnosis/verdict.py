"""The verdict on the first step where a run meets it: told, kept in the journal and in Prefect, and obeyed."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from flows.configuration.redaction import Redactor
from flows.diagnosis.config import DiagnosisConfig
from flows.diagnosis.facts import RunFacts
from flows.diagnosis.first_step import FIRST_STEP, Judged, judge_step, worst
from flows.diagnosis.text import Shown
from tasks.journal import step_label, write_json
from tasks.progress import Event, emit
from tasks.run import RunRef

STEP = 1

_log = logging.getLogger(__name__)


class FirstStepError(RuntimeError):
    """The first step has shown that going on would be senseless."""


def is_first_to_judge(step: int, done: int) -> bool:
    """Whether the verdict is due after `step`: the first has just been made, or was the last one before a resume.

    `done` are the updates that the journal held when this process began.
    """
    return step == STEP and done <= STEP


async def judge_first_step(run: RunRef, config: DiagnosisConfig) -> None:
    """Tell the verdict on step 1 and keep it in steps/step_000001/first_step.json and as a Prefect artifact.

    Raises:
        FirstStepError: its facts leave nothing to go on with, and `config.stop` is on. The step itself is recorded.
    """
    label = step_label(STEP)
    facts = await asyncio.to_thread(RunFacts.read, run.root, run.name)
    judged = await asyncio.to_thread(judge_step, facts, STEP)
    lines = [line for item in judged for line in told(item)]
    for line in [f"first step: {worst(judged)}", *lines]:
        emit(Event("note", label, line))
    await asyncio.to_thread(write_json, run.journal.stage_dir(label) / FIRST_STEP, verdict_json(judged))
    await _publish(run, judged)
    reasons = [line for item in judged if item.stops for line in told(item)]
    if reasons and config.stop:
        mend = (
            "The step is recorded, and started again the run stops here again: mend what is wrong and take another "
            "experiment name, or set diagnosis.stop: false to go on all the same."
        )
        raise FirstStepError("\n".join(["the first step leaves nothing to go on with:", *reasons, mend]))


def told(judged: Judged) -> list[str]:
    """The line of a finding, as `testgrad check` prints it, and one for each likely cause."""
    finding, shown = judged.finding, Shown()
    lines = [f"{finding.level.mark} {finding.level:<6}{finding.check:<18}{finding.message}"]
    lines += [f"    likely {i}: {cause.text}" for i, cause in enumerate(judged.causes, 1)]
    return [shown(line) for line in lines]


def verdict_json(judged: Sequence[Judged]) -> dict[str, Any]:
    """What first_step.json holds."""
    shown: dict[str, Any] = Redactor().value(
        {"step": STEP, "verdict": str(worst(list(judged))), "findings": [item.to_json() for item in judged]}
    )
    return shown


async def _publish(run: RunRef, judged: Sequence[Judged]) -> None:
    """Enter the verdict in Prefect; it is for looking at, and one that cannot be entered costs no run."""
    from prefect.artifacts import acreate_table_artifact

    rows = [
        {
            "level": f"{item.finding.level.mark} {item.finding.level}",
            "check": item.finding.check,
            "finding": item.finding.message,
            "likely causes": "; ".join(f"{i}. {cause.text}" for i, cause in enumerate(item.causes, 1)),
        }
        for item in judged
    ]
    try:
        await acreate_table_artifact(
            table=Redactor().value(rows),
            key="first-step",
            description=f"First step of {run.name}: {worst(list(judged))}",
        )
    except Exception as error:
        _log.warning("no artifact of the first step: %s", error, exc_info=error)
        emit(Event("note", "", f"the first step's verdict is not in Prefect ({type(error).__name__}: {error})"))
