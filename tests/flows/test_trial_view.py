"""What the terminal says of trials: filters, marks, and where the seconds went."""

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from support.atif_schema import Trajectory
from support.captures import busy_capture
from support.journals import make_result, make_run, make_verdict, write_trial

from flows.export_atif import export_trials
from flows.trial_view import LESS_PROTECTED, find_trial, find_trials, list_trials, show_trial, stage_seconds
from harness.patch import Patch
from tasks.journal import Journal, JournalError, write_json
from tasks.trial_files import load_trial, store_verdict
from trainer.rollout import Outcome

TIMINGS = {
    "queue": 1.0, "retries": 0.5, "sandbox_start": 2.0, "agent": 10.0, "generate": 7.0, "patch": 0.25,
    "sandbox_stop": 0.125,
}  # fmt: skip


def shown(journal: Journal, outcome: str | None = None) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    list_trials(console, journal, None, outcome, 40)
    return console.export_text()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    run = make_run(tmp_path)
    for name, result, verdict in (
        ("sound", make_result("sound", timings=TIMINGS), make_verdict("passed")),
        ("forger", make_result("forger", timings=TIMINGS), make_verdict("tampered")),
        ("harbor", make_result("harbor", timings=TIMINGS), make_verdict("failed", protected=False)),
        ("late", make_result("late", outcome=Outcome.AGENT_TIMEOUT, timings=TIMINGS), make_verdict("failed")),
        ("lost", make_result("lost", outcome=Outcome.INFRA_ERROR, timings={"sandbox_start": 3.0}), None),
    ):
        assert name == result.spec.session_id
        write_trial(run, "step_000001", result, None)
        if verdict is not None:
            store_verdict(run.journal.trials_dir("step_000001") / name, verdict)
    return run.journal


@pytest.mark.parametrize(
    ("outcome", "sessions"),
    [
        (None, {"sound", "forger", "harbor", "late", "lost"}),
        ("agent_timeout", {"late"}),
        ("infra_error", {"lost"}),
        ("tampered", {"forger"}),
        ("failed", {"harbor", "late"}),
    ],
)
def test_trials_are_filtered_by_outcome_or_verdict(journal, outcome, sessions) -> None:
    text = shown(journal, outcome)
    assert {name for name in ("sound", "forger", "harbor", "late", "lost") if name in text} == sessions
    assert f"{len(sessions)} of {len(sessions)} trials" in text


def test_less_protected_gradings_are_marked(journal) -> None:
    lines = shown(journal).splitlines()
    assert [line.split()[1] for line in lines if LESS_PROTECTED in line and "step" in line] == ["harbor"]
    assert any("less protected" in line for line in lines)
    assert "less protected" not in shown(journal, "tampered")
    console = Console(width=200, file=io.StringIO(), record=True)
    show_trial(console, journal, "harbor")
    assert "less protected" in console.export_text()


def shown_trial(journal: Journal, session: str) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    show_trial(console, journal, session)
    return console.export_text()


def test_a_trial_is_told_segment_by_segment(tmp_path) -> None:
    run = make_run(tmp_path)
    result = make_result("busy", segments=busy_capture().segments)
    result.transcript.note("agent_ended", exit_code=1, stdout="[red]no markup[/red]")
    write_trial(run, "step_000001", result)
    text = shown_trial(run.journal, "busy")
    assert "segment 2, sub:2, 3 sampled tokens, not trained" in text
    assert "segment 3, main, 2 sampled tokens, goes on from turn 2 of segment 0" in text
    assert "look first" in text and 'bash {"command": "ls"}' in text and "solution.py" in text
    assert "turn 1, 5 + 2 tokens, 0.0 s" in text
    assert 'agent_ended exit_code 1, stdout "[red]no markup[/red]"' in text


def test_what_a_trial_leaves_commands_no_terminal(tmp_path) -> None:
    evil = "\x1b]52;c;cm0gLXJmIH4=\x07\x1b[2J\x9b1A"
    run = make_run(tmp_path)
    result = dataclasses.replace(make_result("evil"), patch=Patch(text=f"+{evil}\n"), error=f"{evil}")
    result.transcript.say("assistant", f"look {evil}")
    write_trial(run, "step_000001", result, None)
    folder = run.journal.trials_dir("step_000001") / "evil"
    store_verdict(folder, dataclasses.replace(make_verdict("failed"), log=f"two\nlines {evil}"))
    console = Console(width=120, file=io.StringIO(), force_terminal=True)
    show_trial(console, run.journal, "evil")
    text = console.file.getvalue()
    assert "\x1b[" in text, "styles stay"
    assert "cm0gLXJmIH4=" in text and not {"\x07", "\x9b"} & set(text)
    assert "\x1b]52" not in text and "\x1b[2J" not in text


def test_a_trial_that_never_asked_shows_what_the_scaffold_said(tmp_path) -> None:
    run = make_run(tmp_path)
    write_trial(run, "step_000001", make_result("mute", turns=None))
    assert "mend it" in shown_trial(run.journal, "mute")


def test_export(journal, tmp_path) -> None:
    write_json(journal.root / "config.json", {"config": {"model": {"path": "some/model"}}})
    written = export_trials(journal, find_trials(journal, None, None), tmp_path / "out")
    assert sorted(path.name for path in written) == ["forger", "harbor", "late", "sound"], "lost has no answers"
    document = json.loads((tmp_path / "out" / "sound" / "trajectory.json").read_text())
    Trajectory.model_validate(document)
    assert document["agent"] == {"name": "edit", "version": "unknown", "model_name": "some/model"}
    assert document["final_metrics"]["extra"] == {"reward": 1.0}
    with pytest.raises(JournalError, match=r"no trial .* begins with 'x'"):
        find_trial(journal, "x")


def test_seconds_are_told_by_stage(journal) -> None:
    trial = load_trial(next(folder for folder in journal.trials("step_000001") if folder.name == "sound"))
    assert stage_seconds(trial) == {
        "queue": 1.0, "retries": 0.5, "start": 2.0, "agent": 3.0, "model": 7.0, "patch": 0.25, "stop": 0.125,
        "grading": 0.25,
    }  # fmt: skip
    rows = {line.split()[0]: line.split() for line in shown(journal).splitlines() if line.strip()}
    assert rows["start"][1:3] == ["2.00", "2.60"], "p50 and p90 of 2, 2, 2, 2, 3"
    assert rows["model"][1:3] == ["7.00", "7.00"], "of those that had a model"
    assert rows["model"][3] == "47%"
