"""Preparing agents: complete or absent, once, tried in a sandbox."""

import asyncio
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.sandbox.base import SandboxConfig
from harness.scaffolds import npm_runtime, runtimes
from harness.scaffolds.runtimes import Runtime, RuntimeBuildError, RuntimeMissing, Say, install, prepared, roomy

AGENT = "#!/bin/sh\necho agent 1.2.3 in $HOME\n"


@dataclass(frozen=True)
class FakeRuntime(Runtime):
    """An agent that is a shell script."""

    script: str = AGENT
    builds: list[Path] = field(default_factory=list, hash=False)

    @property
    def packages(self) -> tuple[str, ...]:
        return (f"agent@{self.version}",)

    def build(self, folder: Path, say: Say) -> None:
        self.builds.append(folder)
        say("building")
        (folder / "bin").mkdir(mode=0o700)
        program = folder / "bin" / "agent"
        program.write_text(self.script)
        program.chmod(0o722)
        if "cannot be had" in self.script:
            raise RuntimeBuildError(self.script)

    def version_command(self, root: str) -> tuple[Sequence[str], dict[str, str]]:
        return [f"{root}/bin/agent", "--version"], {}


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that sandboxes can reach: pytest's own are closed to other users."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder) / "runtimes"


def register(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> None:
    monkeypatch.setitem(runtimes.RUNTIMES, runtime.name, runtime)


def leftovers(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if not path.name.endswith(".lock"))


async def test_prepared_once_and_readable_by_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime("fake", "Fake", "1.2.3")
    register(monkeypatch, runtime)
    said: list[str] = []
    assert prepared("fake", root) is None
    folders = await asyncio.gather(
        *(asyncio.to_thread(asyncio.run, install("fake", root, say=said.append)) for _ in "ab")
    )
    assert folders[0] == folders[1] == prepared("fake", root)
    assert len(runtime.builds) == 1, "the second one waits for the first"
    assert leftovers(root) == [runtime.key]
    assert any("waiting" in line for line in said) or sum("is ready" in line for line in said) == 2
    mode = (folders[0] / "bin" / "agent").stat().st_mode
    assert stat.S_IMODE(mode) == 0o755, "runnable by all, changed by none but its owner"
    assert stat.S_IMODE((folders[0] / "bin").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("#!/bin/sh\necho agent 1.2.2\n", "does not run in a sandbox: exit code 0, agent 1.2.2"),
        ("#!/bin/sh\necho 1.2.3; exit 3\n", "exit code 3"),
        ("cannot be had", "cannot be had"),
    ],
)
async def test_what_does_not_run_is_not_left(
    root: Path, monkeypatch: pytest.MonkeyPatch, script: str, complaint: str
) -> None:
    register(monkeypatch, FakeRuntime("fake", "Fake", "1.2.3", script))
    with pytest.raises(RuntimeBuildError, match=complaint):
        await install("fake", root, say=lambda _: None)
    assert leftovers(root) == []
    assert prepared("fake", root) is None


async def test_what_a_killed_one_left_is_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime("fake", "Fake", "1.2.3")
    register(monkeypatch, runtime)
    (root / f".{runtime.key}.0123abcd.part" / "bin").mkdir(parents=True)
    (root / runtime.key).mkdir()  # a folder without a manifest is none
    assert prepared("fake", root) is None
    await install("fake", root, say=lambda _: None)
    assert leftovers(root) == [runtime.key]


def test_another_pin_is_another_folder() -> None:
    assert FakeRuntime("fake", "Fake", "1.2.3").key != FakeRuntime("fake", "Fake", "1.2.4").key


def test_who_is_missing_is_told_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(RuntimeMissing, match=f"testgrad scaffolds install cc --folder {tmp_path}"):
        runtimes.require_prepared("cc", tmp_path)
    with pytest.raises(RuntimeMissing, match=r"'nobody' is unknown; .* cc, "):
        runtimes.require_prepared("nobody", tmp_path)


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TESTGRAD_RUNTIMES", str(tmp_path))
    assert runtimes.default_folder() == tmp_path
    monkeypatch.delenv("TESTGRAD_RUNTIMES")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert runtimes.default_folder() == tmp_path / "cache" / "testgrad" / "runtimes"


def test_limits_are_raised_and_never_lowered() -> None:
    config = SandboxConfig(processes=5000, total_memory_bytes=1 << 30)
    assert roomy(config).processes == 5000
    assert roomy(config).memory_bytes == 1 << 40
    assert roomy(config).total_memory_bytes == 1 << 30, "what is really used is held as before"


NPM = """\
#!/bin/sh
while [ $# -gt 0 ]; do case "$1" in --prefix) prefix="$2";; esac; printf '%s\\n' "$1" >> "$NPM_LOG"; shift; done
mkdir -p "$prefix/node_modules/a/bin" && cd "$prefix/node_modules"
printf '#!/bin/sh\\necho a 1.0.0\\n' > a/bin/a
printf '{"packages": {"node_modules/a": {"integrity": "%s"}%s}}' "$NPM_SAYS" "$NPM_MORE" > .package-lock.json
"""


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for npm that logs its arguments and installs `a`."""
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(NPM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("NPM_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("NPM_SAYS", "sha512-right")
    monkeypatch.setenv("NPM_MORE", "")
    pins = {arch: [npm_runtime.NpmPackage("a", "1.0.0", "sha512-right")] for arch in ("x64", "arm64")}
    program = "node_modules/a/bin/a"
    register(monkeypatch, npm_runtime.NpmRuntime("a", "A", "1.0.0", pins, (program,), executable=(program,)))
    return tmp_path / "log"


async def test_npm_runs_no_scripts_and_takes_exactly_the_pins(npm: Path, root: Path) -> None:
    folder = await install("a", root, say=lambda _: None)
    words = npm.read_text().split()
    assert {"--ignore-scripts", "--omit=optional", "a@1.0.0"} <= set(words)
    assert not any("registry" in word for word in words), "which registry is the client's business"
    assert sorted(path.name for path in folder.iterdir()) == ["node_modules", "runtime.json"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("NPM_SAYS", "sha512-wrong"), ("NPM_MORE", ', "node_modules/b": {"integrity": "sha512-b"}')],
)
async def test_other_bytes_than_the_pinned_are_refused(
    npm: Path, root: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(RuntimeBuildError, match=r"not what is pinned for A: [ab] differ"):
        await install("a", root, say=lambda _: None)
    assert leftovers(root) == []


async def test_no_npm_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeBuildError, match="npm is not on PATH"):
        await install("cc", root, say=lambda _: None)


def test_every_pin_is_exact() -> None:
    pinned = [runtime for runtime in runtimes.RUNTIMES.values() if isinstance(runtime, npm_runtime.NpmRuntime)]
    assert {"cc", "codex", "oc", "qwen"} <= {runtime.name for runtime in pinned}
    for runtime in pinned:
        for package in [package for packages in runtime.pins.values() for package in packages]:
            assert package.integrity.startswith("sha512-")
            assert package.version[0].isdigit()
        assert any(package.version.startswith(runtime.version) for package in runtime.pins["x64"])
