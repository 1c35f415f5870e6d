"""What a person sees of a collection: how far it is, what it came to, and what does not count."""

import io

from rich.console import Console

from flows.collect_view import collect_bar, print_collection
from tasks.collection import LABEL
from tasks.progress import Event, emit

RECORD = {
    "bands": {"unsolved": 2, "hard": 0, "medium": 1, "easy": 0, "solved": 1},
    "tasks": 5, "measured": 4, "mixed": 1, "solved": 6, "trials": 16, "counted": 15, "wanted": 20, "coverage": 0.75,
    "mean_pass_rate": 0.375, "reasons": {"SandboxError: no memory": 4, "grading: hung": 1},
    "done": {"stopped": None}, "folder": "/runs/collections/look", "report": "/runs/collections/look/report.md",
}  # fmt: skip


def shown(record):
    console = Console(file=io.StringIO(), width=100)
    print_collection(console, record)
    return console.file.getvalue()


def test_what_does_not_count_is_told_with_its_reasons():
    text = shown(RECORD)
    assert "6 of 16 trials solved their task; mean pass rate 0.375 over 4 tasks; 1 tasks are solved sometimes" in text
    assert "5 of 20 trials do not count: 4 × SandboxError: no memory; 1 × grading: hung. They are no failures" in text
    assert "unmeasured      1" in text and "stopped" not in text
    assert "do not count" not in shown(RECORD | {"coverage": 1.0})


def test_what_a_trial_said_commands_no_terminal():
    lost = "SandboxError: \x1b[2Jgone"
    record = RECORD | {"reasons": {lost: 5}, "done": {"stopped": f"most often: {lost}"}}
    assert "\x1b" not in shown(record) and shown(record).count("SandboxError: \N{REPLACEMENT CHARACTER}[2Jgone") == 2


def test_a_collection_that_was_stopped_says_why():
    assert "stopped: the last 20 trials were all lost" in shown(
        RECORD | {"done": {"stopped": "the last 20 trials were all lost to infrastructure, most often: no sandbox"}}
    )


def test_nothing_measured_has_no_rate():
    empty = RECORD | {"bands": dict.fromkeys(RECORD["bands"], 0), "measured": 0, "mean_pass_rate": None, "counted": 0}
    assert "mean pass rate" not in shown(empty | {"reasons": {}}) and "not made" in shown(empty | {"reasons": {}})


def emit_all(total):
    for done in range(total + 1):
        data = {"passed": done // 2, "failed": done - done // 2, "lost": 0}
        emit(Event("collect", LABEL, done=done, total=total, data=data | {"lost": 1} if done > 90 else data))


def test_a_log_gets_a_line_for_each_tenth():
    console = Console(file=io.StringIO(), width=200)
    with collect_bar(console):
        emit(Event("note", "", "starting"))
        emit_all(100)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "starting" and len(lines) == 1 + 11
    assert lines[6] == "50 of 100 trials: 25 solved, 25 failed"
    assert lines[-1] == "100 of 100 trials: 50 solved, 50 failed, 1 lost"


def test_a_terminal_gets_a_bar():
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with collect_bar(console):
        emit_all(20)
    assert "20/20" in console.file.getvalue() and "10 solved, 10 failed" in console.file.getvalue()
