"""A trial in the terminal: what was said, what was changed, what the tests said."""

from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from flows.printable import only_printable
from flows.trajectory_view import show_trajectory
from harness.verifier import Status
from tasks.journal import Journal, JournalError, step_label
from tasks.trial_files import StoredTrial, load_trial
from trainer.rollout import Outcome

LESS_PROTECTED = "◊"
"""Marks verdicts of grading kinds that believe what the tests' own process writes."""

STAGES = {
    "queue": "waiting for a turn",
    "retries": "attempts that the machine broke, and pauses",
    "start": "sandbox and snapshot",
    "agent": "the agent without the model",
    "model": "the model's answers",
    "patch": "reading the changes",
    "stop": "removing the sandbox",
    "grading": "the hidden tests",
}


def list_trials(console: Console, journal: Journal, step: int | None, outcome: str | None, limit: int) -> None:
    """A table of trials, newest steps first, and where the seconds of all that match went."""
    found = find_trials(journal, step, outcome)
    table = Table("step", "session", "outcome", "verdict", "reward", "turns", "tokens", box=None, header_style="bold")
    table.add_column("seconds", justify="right")
    for trial in found[:limit]:
        reward = "" if trial.verdict is None else f"{trial.verdict.reward:.0f}"
        record = trial.record
        table.add_row(
            trial.folder.parent.name,
            trial.session_id,
            Text(str(trial.outcome), "red" if trial.outcome is Outcome.INFRA_ERROR else ""),
            _marked_status(trial),
            reward,
            str(record["turns"]),
            str(record["response_length"]),
            f"{sum(stage_seconds(trial).values()):.1f}",
        )
    console.print(table)
    console.print(
        f"{min(limit, len(found))} of {len(found)} trials; show one with: testgrad trials RUN SESSION", highlight=False
    )
    if any(_is_less_protected(trial) for trial in found):
        console.print(f"{LESS_PROTECTED} less protected: graded by what the tests' own process reports")
    if found:
        console.print()
        console.print(_stage_table([stage_seconds(trial) for trial in found]))


def find_trials(journal: Journal, step: int | None, outcome: str | None) -> list[StoredTrial]:
    """Trials of a step, or of all steps, with this outcome or verdict, newest steps first.

    Raises:
        JournalError: the run has no trials.
    """
    return [trial for trial in _trials(journal, step) if outcome in (None, str(trial.outcome), _status(trial))]


def find_trial(journal: Journal, session: str) -> StoredTrial:
    """The trial whose session id begins with `session`.

    Raises:
        JournalError: there is none.
    """
    matches = [trial for trial in _trials(journal, None) if trial.session_id.startswith(session)]
    if not matches:
        raise JournalError(f"no trial in {journal.root} begins with {session!r}; list them with: testgrad trials RUN")
    return matches[0]


def stage_seconds(trial: StoredTrial) -> dict[str, float]:
    """Seconds of a trial by `STAGES`, those that it went through."""
    timings = trial.record["timings"]
    seconds = {"queue": timings.get("queue"), "retries": timings.get("retries"), "start": timings.get("sandbox_start")}
    if "agent" in timings:
        model = timings.get("generate", 0.0)
        seconds |= {"agent": max(timings["agent"] - model, 0.0), "model": model}
    seconds |= {"patch": timings.get("patch"), "stop": timings.get("sandbox_stop")}
    if trial.verdict is not None:
        seconds["grading"] = trial.verdict.seconds
    return {stage: value for stage, value in seconds.items() if value is not None}


def _stage_table(trials: Sequence[Mapping[str, float]]) -> Table:
    """p50, p90 and share of the sum, by stage."""
    table = Table("stage", box=None, header_style="bold")
    for column in ("p50 s", "p90 s", "share"):
        table.add_column(column, justify="right")
    table.add_column("")
    total = sum(sum(trial.values()) for trial in trials) or 1.0
    for stage, meaning in STAGES.items():
        values = [trial[stage] for trial in trials if stage in trial]
        if not values:
            continue
        p50, p90 = np.percentile(values, [50, 90])
        table.add_row(stage, f"{p50:.2f}", f"{p90:.2f}", f"{sum(values) / total:.0%}", Text(meaning, "dim"))
    return table


def show_trial(console: Console, journal: Journal, session: str) -> None:
    """Conversation, diff and test report of the trial whose session id begins with `session`."""
    trial = find_trial(journal, session)
    with only_printable(console):
        if trial.has_trajectory:
            show_trajectory(console, trial.trajectory())
        else:
            console.print(
                "[yellow]conversation and changes are not kept[/yellow] (schedule.keep_trials)", highlight=False
            )
        diff = trial.folder / "patch.diff"
        if diff.is_file() and diff.read_text():
            console.print(
                Panel(Syntax(diff.read_text(), "diff", background_color="default"), title="diff", title_align="left")
            )
        console.print(Panel(_report(trial), title="tests", title_align="left"))
        console.print(str(trial.folder), highlight=False, markup=False)


def _trials(journal: Journal, step: int | None) -> list[StoredTrial]:
    folder = journal.root / "trials"
    if not folder.is_dir():
        raise JournalError(f"{journal.root} has no trials; name a run as project/experiment, and --root where it is")
    labels = [step_label(step)] if step is not None else sorted((p.name for p in folder.iterdir()), reverse=True)
    return [load_trial(trial) for label in labels for trial in journal.trials(label)]


def _status(trial: StoredTrial) -> str:
    return "" if trial.verdict is None else str(trial.verdict.status)


def _is_less_protected(trial: StoredTrial) -> bool:
    return trial.verdict is not None and not trial.verdict.protected


def _marked_status(trial: StoredTrial) -> Text:
    status = _status(trial)
    text = Text(status, "bold white on red" if status == Status.TAMPERED else "")
    return text.append(f" {LESS_PROTECTED}", "yellow") if _is_less_protected(trial) else text


def _report(trial: StoredTrial) -> Text:
    text = Text(f"outcome {trial.outcome}")
    if trial.record["error"]:
        text.append(f"\n{trial.record['error']}", style="red")
    if trial.verdict is not None:
        text.append(
            f"\nverdict {trial.verdict.status}, reward {trial.verdict.reward:.0f}: {trial.verdict.reason}",
            style="bold white on red" if trial.verdict.status is Status.TAMPERED else "bold",
        )
        if _is_less_protected(trial):
            text.append("\nless protected: graded by what the tests' own process reports", style="yellow")
        for name, status in sorted(trial.verdict.tests.items()):
            text.append(f"\n  {status:8} {name}", style="green" if status == "passed" else "red")
        if trial.verdict.log:
            text.append(f"\n\n{trial.verdict.log}", style="dim")
    for path, reason in trial.record["patch_rejected"]:
        text.append(f"\nnot graded: {path} ({reason})", style="yellow")
    return text
