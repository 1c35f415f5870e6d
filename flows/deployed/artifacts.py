"""What goes on, on the page of the flow run: progress of the trials, a table of steps, scores with their coverage."""

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    acreate_markdown_artifact,
    acreate_progress_artifact,
    acreate_table_artifact,
    aupdate_progress_artifact,
)
from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

from flows.environment import tracking_uri
from tasks.journal import Journal, step_label
from tasks.progress import Event, emit, watching

_COLUMNS = {
    "score": "critic/score/mean",
    "answer tokens": "response_length/mean",
    "pearson": "training/rollout_actor_probs_pearson_corr",
    "entropy": "actor/entropy",
    "gradient": "actor/grad_norm",
    "trials s": "timing_s/gen",
    "update s": "timing_s/update_actor",
    "sync s": "timing_s/update_weights",
    "step s": "timing_s/step",
}
_OUTCOME = "outcome/"
_MOST_ROWS = 100
"""Of the table of steps: each version of it stays in the server's database."""

_LEAST_ADVANCE = 5.0
"""Percent between two updates of a bar: a step has hundreds of trials, and the server counts requests."""

_PATIENCE_SEC = 30.0

_log = logging.getLogger(__name__)


@asynccontextmanager
async def showing(name: str) -> AsyncIterator[None]:
    """Show events inside the block as artifacts; those that are being written at its end are waited for."""
    artifacts = _Artifacts(re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-"))
    with watching(artifacts.see):
        yield
    await artifacts.written()


class _Artifacts:
    def __init__(self, key: str) -> None:
        self._key = key
        self._rows: deque[dict[str, Any]] = deque(maxlen=_MOST_ROWS)
        self._has_new_rows = False
        self._bars: dict[str, UUID] = {}
        self._shown: dict[str, float] = {}
        self._newest: dict[str, float] = {}
        # events come from within Prefect tasks, whose clients are closed when they end; what is written belongs to the
        # flow that shows it
        self._context = copy_context()
        self._writing: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    def see(self, event: Event) -> None:
        """Write what the event says, behind the flow's back: a page that cannot be written stops nothing."""
        if event.kind == "note":
            _say(event.text)
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # from a thread
        work: Coroutine[Any, Any, None] | None = None
        if event.kind == "step":
            self._rows.append(_row(event))
            self._has_new_rows = True
            work = self._steps()
        elif event.kind == "eval":
            work = self._scores(event)
        elif event.kind in ("trials", "collect", "rollouts") and event.total:
            percent = 100.0 * event.done / event.total
            if percent == 100.0 or percent - self._shown.get(event.label, -100.0) >= _LEAST_ADVANCE:
                self._shown[event.label] = self._newest[event.label] = percent
                work = self._progress(event)
        if work is not None:
            task = loop.create_task(self._quietly(work), context=self._context.copy())
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def written(self) -> None:
        """Wait for what is being written: with the flow its loop ends, and the last score with it."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=_PATIENCE_SEC)

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        async with self._turn:
            try:
                await work
            except Exception as error:
                _log.warning("no artifact: %s", error)

    async def _progress(self, event: Event) -> None:
        percent = self._newest.pop(event.label, None)
        if percent is None:
            return  # an earlier turn has written what was newest by then
        if event.label in self._bars:
            await aupdate_progress_artifact(self._bars[event.label], percent)
            return
        key = f"{self._key}-{event.label}".replace("_", "-")
        what = "groups" if event.kind == "rollouts" else "trials"
        text = f"{what} of {event.label.replace('_', ' ')}"
        self._bars[event.label] = await acreate_progress_artifact(percent, key, text)

    async def _steps(self) -> None:
        if self._has_new_rows:  # else an earlier turn has written them
            self._has_new_rows = False
            await acreate_table_artifact(list(self._rows), f"{self._key}-steps", "steps, newest last")

    async def _scores(self, event: Event) -> None:
        record = event.data
        lines = [
            f"Held-out score after step {record['step']}",
            "",
            "| | score | 95 % | scored of tasks |",
            "|---|---|---|---|",
        ]
        for k, rate in sorted(record["pass_at"].items(), key=lambda item: int(item[0])):
            interval = f"{rate['low']:.3f} to {rate['high']:.3f}"
            lines.append(f"| pass@{k} | {rate['value']:.3f} | {interval} | {rate['scored']} of {rate['tasks']} |")
        lines += ["", f"{record['scored']} of {record['launched']} trials scored"]
        key = f"{self._key}-evaluation-{record['step']}"
        await acreate_markdown_artifact("\n".join(lines), key, "held-out score")


def _say(text: str) -> None:
    """A line in the log of the flow run, or of its Prefect task, if one is at work here."""
    try:
        get_run_logger().info("%s", text)
    except MissingContextError:
        _log.info("%s", text)


def _row(event: Event) -> dict[str, Any]:
    found = {column: event.data.get(name) for column, name in _COLUMNS.items()}
    outcomes = {
        name.removeprefix(_OUTCOME): int(count) for name, count in event.data.items() if name.startswith(_OUTCOME)
    }
    ended = ", ".join(f"{outcome} {count}" for outcome, count in outcomes.items() if count)
    return {"step": event.done, "trials": ended or "–"} | {
        column: round(value, 4) if value is not None and value == value else "–" for column, value in found.items()
    }


def show_earlier_steps(journal: Journal) -> None:
    """The steps that a run has made before it is started again: the table goes on where it stopped."""
    for step in journal.finished_steps()[-_MOST_ROWS:]:
        record = journal.stage(step_label(step), "record.json")
        assert record is not None, "a step that has finished has its record"
        emit(Event("step", step_label(step), done=step, data=record["metrics"]))


async def link_artifacts(name: str, root: Path, project: str, experiment: str) -> None:
    """Where else to look at a run: its journal, its report, its page in MLflow, and the commands that show trials."""
    run = f"{project}/{experiment}"
    folder = root.resolve() / project / experiment
    tracking = tracking_uri(root)
    mlflow = f"[{tracking}]({tracking}), experiment {project}" if tracking.startswith("http") else f"`{tracking}`"
    lines = [
        f"* MLflow: {mlflow}",
        f"* journal: `{folder}`; trajectories are in `trials/`",
        f"* report: `testgrad report {run}`",
        f"* trials: `testgrad trials {run}`",
        f"* state: `testgrad status {run}`",
    ]
    key = re.sub(r"[^a-z0-9-]+", "-", f"{name}-where".lower()).strip("-")
    await acreate_markdown_artifact("\n".join(lines), key, f"where {run} can be looked at")
