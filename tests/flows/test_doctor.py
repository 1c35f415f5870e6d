"""The check of backends: real trials, and what is said of those that fail."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from flows.commands import doctor as command
from harness.checkup import check_backend
from harness.pool.sample import sample_task
from harness.sandbox import SANDBOXES, SandboxConfig, SandboxError, SandboxUnavailable


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    app = typer.Typer()
    app.command()(command.doctor)
    monkeypatch.setattr(command, "console", Console(width=300))
    return lambda *words: CliRunner().invoke(app, list(words))


def backend(monkeypatch: pytest.MonkeyPatch, name: str, **methods: Any) -> None:
    """Register bubblewrap as `name`, with some methods replaced."""
    monkeypatch.setitem(SANDBOXES, name, type("Changed", (SANDBOXES["bubblewrap"],), methods))


def test_a_sound_backend(run) -> None:
    result = run("--backend", "bubblewrap")
    assert result.exit_code == 0, result.output
    assert "bubblewrap" in result.output and "nothing done scores 0, the solution 1" in result.output


def test_a_backend_that_is_missing_fails_only_who_asks_for_it(run, monkeypatch) -> None:
    def nothing_here(config: SandboxConfig) -> None:
        raise SandboxUnavailable("no engine answers; start it")

    backend(monkeypatch, "boxes", require_isolation=staticmethod(nothing_here))
    monkeypatch.setattr(command, "SANDBOXES", {name: SANDBOXES[name] for name in ("bubblewrap", "boxes")})
    result = run()
    assert result.exit_code == 0 and "no engine answers; start it" in result.output
    assert run("--backend", "boxes").exit_code == 1


def test_an_unknown_backend_is_refused(run) -> None:
    result = run("--backend", "chroot")
    assert result.exit_code == 2 and "chroot" in result.output


async def forgets(self: Any, *args: Any) -> None:
    return None


async def breaks(self: Any, *args: Any) -> None:
    raise SandboxError("no space left")


@pytest.mark.parametrize(
    ("methods", "complaint"),
    [
        ({"upload": forgets}, "the snapshot is not there"),
        ({"upload": breaks}, "it breaks: upload failed"),
        ({"mount_read_only": breaks}, "nothing done cannot be graded"),
    ],
)
async def test_what_is_wrong_is_said(tmp_path: Path, monkeypatch, methods: dict[str, Any], complaint: str) -> None:
    task = await asyncio.to_thread(sample_task, tmp_path / "task")
    backend(monkeypatch, "odd", **methods)
    checkup = await check_backend(task, SandboxConfig(backend="odd"))
    assert any(complaint in problem for problem in checkup.problems), checkup


async def test_a_solution_that_does_not_pass_is_a_problem(tmp_path: Path) -> None:
    task = await asyncio.to_thread(sample_task, tmp_path / "task")
    assert task.solution is not None
    (task.solution / "solution.py").write_text((task.snapshot / "solution.py").read_text())
    checkup = await check_backend(task, SandboxConfig())
    assert not checkup.sound and checkup.problems
