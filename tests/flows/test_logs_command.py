"""`testgrad logs` by the command line."""

import json

from typer.testing import CliRunner

from flows.cli import app
from tasks.run_log import NAME

ENTRIES = [
    {"time": "2026-01-01T00:00:01.000+00:00", "level": "INFO", "message": "sampled", "label": "step_000012"},
    {"time": "2026-01-01T00:00:02.000+00:00", "level": "WARNING", "message": "sandbox broke", "trial": "slow-12ab"},
    {"time": "2026-01-01T00:00:03.000+00:00", "level": "ERROR", "message": "gone", "flow_run": "step-12",
     "exception": "Traceback\nValueError: [bold]x"},
]  # fmt: skip


def shown(tmp_path, *arguments):
    folder = tmp_path / "p" / "e" / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text("".join(json.dumps(entry) + "\n" for entry in ENTRIES) + '{"half')
    return CliRunner().invoke(app, ["logs", "p/e", "--root", str(tmp_path), *arguments])


def test_records_are_chosen_by_level_step_trial_and_number(tmp_path):
    whole = shown(tmp_path).output
    assert all(text in whole for text in ("2026-01-01 00:00:01 INFO", "slow-12ab sandbox broke", "ValueError: [bold]x"))
    assert [text in shown(tmp_path, "--level", "error").output for text in ("broke", "gone")] == [False, True]
    assert [text in shown(tmp_path, "--step", "12").output for text in ("sampled", "broke", "gone")] == [1, 0, 1]
    assert [text in shown(tmp_path, "--trial", "slow").output for text in ("sampled", "broke")] == [False, True]
    assert [text in shown(tmp_path, "-n", "1").output for text in ("broke", "gone")] == [False, True]
    assert [json.loads(line) for line in shown(tmp_path, "--json").output.splitlines()] == ENTRIES


def test_what_a_trial_said_commands_no_terminal(tmp_path, monkeypatch):
    entry = {"level": "ERROR", "message": "agent:\n\x1b]0;title\x07\x9b2J", "exception": "E: \x1b[2J"}
    monkeypatch.setitem(globals(), "ENTRIES", [entry])
    for arguments in ((), ("--json",)):
        output = shown(tmp_path, *arguments).output
        assert "2J" in output and not set("\x1b\x07\x9b") & set(output)


def test_what_is_not_there_is_said(tmp_path):
    for arguments, text in ((["--level", "loud"], "no such level"), (["nothing/here"], "no run of this name")):
        command = ["logs", *(arguments if "/" in arguments[0] else ["p/e", *arguments]), "--root", str(tmp_path)]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2 and text in " ".join(result.output.replace("│", " ").split())
