"""The real agents from npm, unmodified, each in a sandbox, each repairing a small task with its own tools.

Only the policy is scripted: it speaks tokens, through the real tokenizer, chat template, proxy and vLLM's tool parser.
"""

import asyncio
import functools
import json
import shutil
from pathlib import Path

import pytest
from support.scored import WINDOW, ScoredPolicy, scored_tokenizer, worst_difference
from support.scripted import ScriptedPolicy
from support.tasks import write_task

from harness.pool.task import Task
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.proxy.tool_calls import ToolReader
from harness.sandbox.base import SandboxConfig
from harness.scaffolds.base import ScaffoldConfig
from harness.scaffolds.runtimes import install, prepared
from harness.trial import TrialResult, TrialSpec, run_trial
from harness.verifier import VerifierConfig, grade
from trainer.rollout import Outcome, Policy, Sampling

FILE = "/workspace/solution.py"
EDITS = {
    "cc": [("Read", {"file_path": FILE}), ("Edit", {"file_path": FILE, "old_string": "a - b", "new_string": "a + b"})],
    "oc": [("edit", {"filePath": FILE, "oldString": "a - b", "newString": "a + b"})],
    "qwen": [
        ("read_file", {"file_path": FILE}),
        ("edit", {"file_path": FILE, "old_string": "a - b", "new_string": "a + b"}),
    ],
    "codex": [("exec_command", {"cmd": "sed -i 's/a - b/a + b/' solution.py"})],
}
"""How each agent's own tools make the repair."""


def calling(name: str, arguments: dict[str, str]) -> str:
    """A call of a tool as models of Hermes' format write it."""
    return f"I will use {name}.\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(scope="module")
def agents() -> None:
    """All agents, prepared where users have them."""
    missing = [name for name in EDITS if prepared(name) is None]
    if missing and shutil.which("npm") is None:
        pytest.skip(f"{', '.join(missing)} are not prepared, and npm is not on PATH to do it")
    for name in missing:
        asyncio.run(install(name))


@functools.cache
def reader() -> ToolReader:
    return ToolReader(scored_tokenizer(), "hermes")


async def trial(task: Path, policy: Policy, **scaffold: object) -> TrialResult:
    spec = TrialSpec("s-0000abcd", "g", "add", task, step=1, sampling=Sampling(max_tokens=2000))
    async with ProxyServer(policy, ChatCodec(scored_tokenizer()), WINDOW, tools=reader()) as proxy:
        return await run_trial(spec, proxy, SandboxConfig(), ScaffoldConfig.model_validate(scaffold))


@pytest.mark.parametrize("name", EDITS)
async def test_an_agent_repairs_a_task(agents: None, tmp_path: Path, name: str) -> None:
    path = write_task(tmp_path / "add")
    script = [*(calling(*edit) for edit in EDITS[name]), "The bug is fixed."]
    policy = ScoredPolicy(script)
    result = await trial(path, policy, name=name, max_turns=10)
    assert (result.outcome, result.error) == (Outcome.COMPLETED, None), result.transcript.events
    assert result.patch is not None and set(result.patch.files) == {"solution.py"}
    verdict = await grade(Task.load(path), result.patch, SandboxConfig(), VerifierConfig())
    assert verdict.reward == 1.0, verdict

    (rollout,) = result.rollouts
    assert (rollout.num_turns, rollout.num_segments) == (len(script), 1), result.counters
    trained = [token for token, mask in zip(rollout.token_ids, rollout.loss_mask, strict=True) if mask]
    assert trained == [token for ids in policy.sampled for token in ids], "exactly what was sampled, in its order"
    assert list(rollout.token_ids)[: -len(policy.sampled[-1])] == policy.prompts[-1], "after exactly what was shown"
    assert worst_difference(rollout) < 1e-4
    assert result.counters["unreadable_tool_calls"] == 0


@pytest.mark.parametrize("name", ["cc", "qwen", "codex"])  # one of each API
async def test_an_agent_whose_turns_are_used_up_ends(agents: None, tmp_path: Path, name: str) -> None:
    policy = ScriptedPolicy(scored_tokenizer(), [calling(*EDITS[name][0])])
    result = await trial(write_task(tmp_path / "add"), policy, name=name, max_turns=2)
    assert (result.outcome, result.error) == (Outcome.MAX_TURNS, None), result.transcript.events
    assert len(policy.calls) == 2
    assert result.counters["requests"] <= 10, "a refusal is not tried again and again"
