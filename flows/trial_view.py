"""A trial in the terminal: what was said, what was changed, what the tests said."""

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from tasks.journal import Journal, JournalError, read_json, step_label
from tasks.trial_files import StoredTrial, load_trial


def list_trials(console: Console, journal: Journal, step: int | None, outcome: str | None, limit: int) -> None:
    """A table of trials, newest steps first."""
    found = [t for t in _trials(journal, step) if outcome in (None, str(t.outcome), _status(t))]
    table = Table("step", "session", "outcome", "verdict", "reward", "turns", "tokens", box=None, header_style="bold")
    for trial in found[:limit]:
        reward = "" if trial.verdict is None else f"{trial.verdict.reward:.0f}"
        record = trial.record
        table.add_row(
            trial.folder.parent.name,
            trial.session_id,
            str(trial.outcome),
            _status(trial),
            reward,
            str(record["turns"]),
            str(record["response_length"]),
        )
    console.print(table)
    console.print(
        f"{min(limit, len(found))} of {len(found)} trials; show one with: testgrad trials RUN SESSION", highlight=False
    )


def show_trial(console: Console, journal: Journal, session: str) -> None:
    """Conversation, diff and test report of the trial whose session id begins with `session`."""
    matches = [trial for trial in _trials(journal, None) if trial.session_id.startswith(session)]
    if not matches:
        raise JournalError(f"no trial in {journal.root} begins with {session!r}; list them with: testgrad trials RUN")
    trial = matches[0]
    for message in (read_json(trial.folder / "trajectory.json") or {})["messages"]:
        # text of the policy: never markup
        console.print(Panel(Text(message["content"]), title=message["role"], title_align="left"))
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


def _report(trial: StoredTrial) -> Text:
    text = Text(f"outcome {trial.outcome}")
    if trial.record["error"]:
        text.append(f"\n{trial.record['error']}", style="red")
    if trial.verdict is not None:
        text.append(
            f"\nverdict {trial.verdict.status}, reward {trial.verdict.reward:.0f}: {trial.verdict.reason}", style="bold"
        )
        for name, status in sorted(trial.verdict.tests.items()):
            text.append(f"\n  {status:8} {name}", style="green" if status == "passed" else "red")
        if trial.verdict.log:
            text.append(f"\n\n{trial.verdict.log}", style="dim")
    for path, reason in trial.record["patch_rejected"]:
        text.append(f"\nnot graded: {path} ({reason})", style="yellow")
    return text
