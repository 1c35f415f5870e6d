"""Agents inside: the launch, the way to the policy, and the end. Real sandbox and proxy; the agents are scripts."""

import functools
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.scripted import ScriptedPolicy
from support.tasks import INSTRUCTION, write_task
from support.tiny import tiny_tokenizer

from harness.pool.task import Task
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.proxy.session import Session
from harness.sandbox.base import Sandbox, SandboxConfig, create_sandbox
from harness.scaffolds.base import ScaffoldConfig, ScaffoldError, ScaffoldResult, create_scaffold
from harness.scaffolds.inside import AgentNotStarted, InsideScaffold
from harness.scaffolds.runtimes import RuntimeMissing
from harness.trajectory import encode
from trainer.rollout import Outcome, Sampling

AGENT = """\
import json, os, pathlib, sys, urllib.request
url, key, told = sys.argv[1:4]
body = {"model": os.environ["MODEL"], "messages": [{"role": "user", "content": told or sys.stdin.read()}]}
ask = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), {"Authorization": key})
answer = json.load(urllib.request.urlopen(ask))["choices"][0]["message"]["content"]
pathlib.Path("answer.txt").write_text(answer)
pathlib.Path(os.environ["HOME"], "note").write_text("mine")
print(json.dumps({"where": os.getcwd(), "url": url, "key": key, "extra": os.environ.get("EXTRA")}))
sys.exit(int(os.environ.get("CODE", "0")))
"""
COMMAND = ("python3", "/opt/agent/agent.py", "{base_url}", "{api_key}")


@functools.cache
def tokenizer():  # type: ignore[no-untyped-def]
    return tiny_tokenizer()


@pytest.fixture
def runtime() -> Iterator[Path]:
    """The folder of the agent, where sandboxes can reach it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "agent.py").write_text(AGENT)
        yield Path(folder)


@asynccontextmanager
async def trial(scaffold: InsideScaffold, policy: ScriptedPolicy) -> AsyncIterator[tuple[Sandbox, Session]]:
    """A sandbox and a session as a trial makes them."""
    async with ProxyServer(policy, ChatCodec(tokenizer()), 4000) as proxy:
        session = proxy.open_session("s", Sampling(max_tokens=200))
        async with create_sandbox(scaffold.sandbox_config(SandboxConfig())) as sandbox:
            await scaffold.prepare(sandbox)
            session.origin = await sandbox.connect_proxy(await proxy.open_socket(session))
            yield sandbox, session


def command(runtime: Path, *words: str, **changes: object) -> InsideScaffold:
    fields = {"name": "command", "command": words, "command_runtime": runtime, "env": {"MODEL": "{model}"}}
    scaffold = create_scaffold(ScaffoldConfig.model_validate(fields | changes))
    assert isinstance(scaffold, InsideScaffold)
    return scaffold


async def run(scaffold: InsideScaffold, task: Task, policy: ScriptedPolicy) -> tuple[ScaffoldResult, bytes, Session]:
    async with trial(scaffold, policy) as (sandbox, session):
        result = await scaffold.run(task, sandbox, session)
        return result, await sandbox.read_file("answer.txt", 1000), session


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task.load(write_task(tmp_path / "add"))


@pytest.mark.parametrize("way", ["word", "input"])
async def test_a_command_reads_the_instruction_and_reaches_the_policy(runtime: Path, task: Task, way: str) -> None:
    told = "{instruction}" if way == "word" else ""
    scaffold = command(runtime, *COMMAND, told, env={"MODEL": "{model}", "EXTRA": "{anthropic_base_url}", "CODE": "3"})
    policy = ScriptedPolicy(tokenizer(), ["bonjour"])
    result, answer, session = await run(scaffold, task, policy)
    assert answer == b"bonjour"
    assert INSTRUCTION in tokenizer().decode(policy.calls[0].prompt_ids)
    assert result.outcome is Outcome.COMPLETED, "an exit code is no outcome"
    end = result.transcript.events[-1]
    assert (end["event"], end["exit_code"]) == ("agent_ended", 3)
    said = json.loads(end["stdout"])
    assert said["where"] == "/workspace"
    assert said["url"].endswith("/s/***/v1") and said["extra"].endswith("/s/***")
    assert session.secret not in json.dumps(result.transcript.to_json())


async def test_names_in_an_instruction_are_not_filled_in(runtime: Path, tmp_path: Path) -> None:
    path = write_task(tmp_path / "task")
    (path / "instruction.md").write_text("Write {api_key} and {instruction}, if you dare.\n")
    policy = ScriptedPolicy(tokenizer(), ["no"])
    await run(command(runtime, *COMMAND, "Task: {instruction}"), Task.load(path), policy)
    assert "Task: Write {api_key} and {instruction}, if" in tokenizer().decode(policy.calls[0].prompt_ids)


async def test_an_agent_that_fails_before_it_asks_is_no_doing_of_the_policy(runtime: Path, task: Task) -> None:
    scaffold = command(runtime, "python3", "/opt/agent/missing.py")
    async with trial(scaffold, ScriptedPolicy(tokenizer(), ["x"])) as (sandbox, session):
        with pytest.raises(AgentNotStarted, match=r"exit code 2 before its first request: .*missing.py"):
            await scaffold.run(task, sandbox, session)
    assert scaffold.transcript.events[-1]["exit_code"] == 2

    idle = command(runtime, "true")
    async with trial(idle, ScriptedPolicy(tokenizer(), ["x"])) as (sandbox, session):
        with pytest.raises(AgentNotStarted, match="exit code 0 before its first request"):
            await idle.run(task, sandbox, session)


async def test_the_agent_has_room_and_its_runtime_is_read_only(runtime: Path, task: Task) -> None:
    script = (
        "import resource, pathlib; pathlib.Path('answer.txt').write_text(str(resource.getrlimit(resource.RLIMIT_AS)))\n"
        "pathlib.Path('/opt/agent/agent.py').write_text('')"
    )
    (runtime / "agent.py").write_text(script)
    scaffold = command(runtime, "python3", "/opt/agent/agent.py")
    async with trial(scaffold, ScriptedPolicy(tokenizer(), ["x"])) as (sandbox, session):
        with pytest.raises(AgentNotStarted, match="Read-only file system"):
            await scaffold.run(task, sandbox, session)
        assert str(1 << 40).encode() in await sandbox.read_file("answer.txt", 1000)


async def test_an_agent_that_is_not_prepared_is_told_before_the_trial(tmp_path: Path) -> None:
    scaffold = create_scaffold(ScaffoldConfig(name="cc", runtimes=tmp_path))
    for ask in (
        lambda: type(scaffold).require(scaffold.config),
        lambda: scaffold.prepare(create_sandbox(SandboxConfig())),
    ):
        with pytest.raises(RuntimeMissing, match="testgrad scaffolds install cc"):
            coroutine = ask()
            if coroutine is not None:
                await coroutine


def test_a_command_needs_words() -> None:
    with pytest.raises(ScaffoldError, match=r"scaffold\.command is empty"):
        create_scaffold(ScaffoldConfig(name="command"))


DEEP = "[" * 300 + "]" * 300


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cc", '{"type": "result", "subtype": %s}' % DEEP),  # noqa: UP031  (braces)
        ("cc", '{"type": "result", "subtype": %s}' % ("[" * 100_000)),
        ("cc", '{"type": "result", "subtype": "%s"}' % ("x" * 100_000)),
        ("oc", '{"type": "step_finish", "part": "no object"}'),
        ("oc", '{"type": "error", "error": %s}' % DEEP),  # noqa: UP031
    ],
)
def test_whatever_is_written_to_an_agents_output_can_be_stored(name: str, line: str) -> None:
    """All that runs beside the agent can write there; what could not be stored would end the run."""
    scaffold = create_scaffold(ScaffoldConfig(name=name))
    assert isinstance(scaffold, InsideScaffold)
    scaffold.transcript.note("agent_ended", **scaffold._end(f"before\n{line}\n"))
    assert len(encode(scaffold.transcript.to_json())) < 2000
