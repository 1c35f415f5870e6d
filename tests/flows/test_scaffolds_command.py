"""`testgrad scaffolds`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.commands.scaffolds import scaffolds
from harness.scaffolds import runtimes
from harness.scaffolds.runtimes import RuntimeBuildError


def test_ls_tells_what_is_prepared(tmp_path: Path) -> None:
    shown = CliRunner().invoke(scaffolds, ["ls", "--folder", str(tmp_path)], env={"COLUMNS": "160"})
    assert shown.exit_code == 0
    lines = {line.split()[0]: line for line in shown.output.splitlines() if line.strip()}
    assert "on the host" in lines["edit"]
    assert lines["cc"].split()[-1] == "no"
    assert "testgrad scaffolds install cc codex" in shown.output
    assert str(tmp_path) in shown.output


def test_one_that_cannot_be_had_does_not_keep_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def install(name: str, folder: Path, **_: object) -> Path:
        asked.append((name, folder))
        if name == "cc":
            raise RuntimeBuildError("no network")
        return folder

    monkeypatch.setattr(runtimes, "install", install)
    done = CliRunner().invoke(scaffolds, ["install", "cc", "oc", "--folder", str(tmp_path)])
    assert asked == [("cc", tmp_path), ("oc", tmp_path)]
    assert done.exit_code == 1
    assert "no network" in done.output


def test_unknown_names_are_refused_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "install", None)
    done = CliRunner().invoke(scaffolds, ["install", "cc", "nobody"])
    assert done.exit_code == 2
    assert "nobody: no such agent" in done.output
