"""The real agents, unmodified, each in a sandbox, each repairing a small task by its own means.

Only the policy is scripted, and in what it says alone: it speaks tokens with the log-probs of a real model, through the
real tokenizer, chat template, proxy and vLLM's tool parser.
"""

import asyncio
import functools
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.scored import WINDOW, ScoredPolicy, scored_folder, scored_tokenizer, worst_difference
from support.tasks import FIXED, write_task

from harness.pool.task import Task
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.proxy.tool_calls import ToolReader
from harness.sandbox.base import SandboxConfig
from harness.scaffolds.base import ScaffoldConfig
from harness.scaffolds.runtimes import MOUNT, RUNTIMES, install, prepared
from harness.trial import TrialResult, TrialSpec, run_trial
from harness.verifier import VerifierConfig, grade
from trainer.rollout import Generation, Outcome, Policy, Sampling
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool

LONGER_THAN_ANY_CLIENT = 660
TEMPERATURE = 0.7
FILE = "/workspace/solution.py"
SED = "sed -i 's/a - b/a + b/' solution.py"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def call(tool: str, **arguments: str) -> str:
    """A call of a tool as models of Hermes' format write it."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def fenced(command: str) -> str:
    """A command as mini-swe-agent reads it from text."""
    return f"THOUGHT: so.\n\n```mswea_bash_command\n{command}\n```"


def keys(*commands: str, done: bool = False) -> str:
    """An answer for the terminal."""
    typed = [{"keystrokes": text, "duration": 3.0} for text in commands]
    return json.dumps({"analysis": "so far", "plan": "next", "commands": typed, "task_complete": done})


SCRIPTS = {
    "cc": [
        "Reading. " + call("Read", file_path=FILE),
        "Mending. " + call("Edit", file_path=FILE, old_string="a - b", new_string="a + b"),
        "The bug is fixed.",
    ],
    "oc": ["Mending. " + call("edit", filePath=FILE, oldString="a - b", newString="a + b"), "The bug is fixed."],
    "qwen": [
        "Reading. " + call("read_file", file_path=FILE),
        "Mending. " + call("edit", file_path=FILE, old_string="a - b", new_string="a + b"),
        "The bug is fixed.",
    ],
    "codex": ["Mending. " + call("exec_command", cmd=SED), "The bug is fixed."],
    "mini": [
        "Looking. " + call("bash", command="ls; cat solution.py; python3 -c 'import sys; print(sys.path)'"),
        "Mending. " + call("bash", command=SED) + "\n" + call("bash", command="cat solution.py"),
        "Done, so submit. " + call("bash", command=SUBMIT),
    ],
    "mini_text": [fenced("ls && cat solution.py"), fenced(SED), fenced(SUBMIT)],
    "ohsdk": [
        "Look first. " + call("terminal", command="cat solution.py; which -a python3"),
        "Mending. " + call("file_editor", command="str_replace", path=FILE, old_str="a - b", new_str="a + b"),
        "Done. " + call("finish", message="add adds now"),
    ],
    "terminus": [
        keys("cat solution.py\n"),
        "Here it is: " + keys("cd /", "C-c", f"cd /workspace\n{SED}\n", "tail -1 solution.py\n"),
        keys(done=True),
        keys(done=True),
    ],
}


@pytest.fixture(scope="module")
def agents() -> None:
    """All agents, prepared where users have them."""
    missing = [name for name in sorted(RUNTIMES) if prepared(name) is None]
    if missing and shutil.which("npm") is None:
        pytest.skip(f"{', '.join(missing)} are not prepared, and npm is not on PATH to do it")
    for name in missing:
        asyncio.run(install(name))


@functools.cache
def reader() -> ToolReader:
    return ToolReader(scored_tokenizer(), "hermes")


async def trial(task: Path, policy: Policy, max_tokens: int = 2000, **scaffold: object) -> TrialResult:
    sampling = Sampling(temperature=TEMPERATURE, max_tokens=max_tokens)
    spec = TrialSpec(f"{scaffold['name']}-0000abcd", "g", "add", task, step=1, sampling=sampling)
    async with ProxyServer(policy, ChatCodec(scored_tokenizer()), WINDOW, tools=reader()) as proxy:
        return await run_trial(spec, proxy, SandboxConfig(), ScaffoldConfig.model_validate(scaffold))


@pytest.mark.parametrize("name", SCRIPTS)
async def test_an_agent_repairs_a_task(agents: None, tmp_path: Path, name: str) -> None:
    path = write_task(tmp_path / "add", agent_timeout=240)
    script, policy = SCRIPTS[name], ScoredPolicy(SCRIPTS[name])
    result = await trial(path, policy, name=name, max_turns=10)
    assert (result.outcome, result.error) == (Outcome.COMPLETED, None), result.transcript.events
    assert result.patch is not None and result.patch.files == {"solution.py": FIXED.encode()}
    verdict = await grade(Task.load(path), result.patch, SandboxConfig(), VerifierConfig())
    assert verdict.reward == 1.0, verdict

    (rollout,) = result.rollouts
    assert rollout.num_turns == len(script), result.counters
    trained = [token for token, mask in zip(rollout.token_ids, rollout.loss_mask, strict=True) if mask]
    told = [ids for prompt, ids in zip(policy.prompts, policy.sampled, strict=True) if is_part(prompt, rollout)]
    assert trained == [token for ids in told for token in ids], "exactly what was sampled, in its order"
    last = next(prompt for prompt in reversed(policy.prompts) if is_part(prompt, rollout))
    assert list(rollout.token_ids)[: len(last)] == last, "after exactly what was shown"
    assert worst_difference(rollout, TEMPERATURE) < 1e-4
    assert result.counters["unreadable_tool_calls"] == 0
    # What the agent starts, and so the policy, finds the repository's own Python.
    assert MOUNT not in scored_tokenizer().decode(last)


@pytest.mark.skipif(not os.environ.get("TESTGRAD_ALL_AGENTS"), reason="TESTGRAD_ALL_AGENTS=1 runs it: 12 minutes")
@pytest.mark.timeout(1200)
async def test_agents_wait_for_an_answer_as_long_as_it_takes(agents: None, tmp_path: Path) -> None:
    """Clients hang up after four to ten minutes, unless they are told otherwise, and ask again: what they get is an
    answer of those that come in time. All of them at once; they only wait."""

    async def wait(name: str) -> TrialResult:
        script = ScoredPolicy(SCRIPTS[name])
        first = asyncio.Event()

        async def slowly(prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
            if not first.is_set():
                first.set()
                await asyncio.sleep(LONGER_THAN_ANY_CLIENT)
            return await script.generate(prompt_ids, sampling, session_id)

        path = write_task(tmp_path / name, agent_timeout=1000)
        return await trial(path, SimpleNamespace(generate=slowly), name=name, max_turns=10)  # type: ignore[arg-type]

    results = await asyncio.gather(*map(wait, sorted(SCRIPTS)))
    hung_up = {name: result.counters["cancelled"] for name, result in zip(sorted(SCRIPTS), results, strict=True)}
    assert hung_up == dict.fromkeys(SCRIPTS, 0)
    assert {result.outcome for result in results} == {Outcome.COMPLETED}


def is_part(prompt: list[int], rollout: object) -> bool:
    """Whether a prompt is of this rollout, and not of a helper that makes up a title, say."""
    return list(rollout.token_ids[: len(prompt)]) == prompt  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["cc", "qwen", "codex"])  # one of each API
async def test_an_agent_whose_turns_are_used_up_ends(agents: None, tmp_path: Path, name: str) -> None:
    policy = ScoredPolicy(SCRIPTS[name][:1])
    result = await trial(write_task(tmp_path / "add"), policy, name=name, max_turns=2)
    assert (result.outcome, result.error) == (Outcome.MAX_TURNS, None), result.transcript.events
    assert len(policy.sampled) == 2
    assert result.counters["requests"] <= 10, "a refusal is not tried again and again"


async def test_agents_at_a_real_engine_leave_rollouts_that_its_weights_explain(
    agents: None, cluster: None, tmp_path: Path
) -> None:
    """A random policy repairs nothing, but what it samples is captured: by an agent on the host, by two with tools."""
    config = ServingConfig(dtype="float32", window=WINDOW, tool_call_parser="hermes")
    engine = await ReplicaPool.start("agents", scored_folder(tmp_path / "model"), config)
    try:
        task = write_task(tmp_path / "add", agent_timeout=240)
        names = ["edit", "mini", "qwen"]
        results = await asyncio.gather(
            *(trial(task, engine, 48, name=name, max_turns=3, segments="all") for name in names)
        )
    finally:
        await engine.shutdown()
    for name, result in zip(names, results, strict=True):
        assert result.outcome is not Outcome.INFRA_ERROR, (name, result.error, result.transcript.events)
        assert result.rollouts and result.counters["turns"] == sum(rollout.num_turns for rollout in result.rollouts)
        for rollout in result.rollouts:
            assert worst_difference(rollout, TEMPERATURE) < 1e-3, name
