"""Agents in Python, unmodified, solve a task in a sandbox: tokens in, tokens out, through proxy, tokenizer and parser.

The policy is scripted in what it says only: its tokens have the log-probs of a real model.
"""

import json

import pytest
from support.speaking import WINDOW, SpeakingPolicy, rescored, tool_call, tool_tokenizer
from support.tasks import FIXED, write_task

from harness.pool.task import Task
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.proxy.tool_calls import ToolReader
from harness.sandbox.base import SandboxConfig
from harness.scaffolds.base import ScaffoldConfig
from harness.scaffolds.runtimes import MOUNT, install
from harness.trial import TrialSpec, run_trial
from harness.verifier import VerifierConfig, grade
from trainer.rollout import Outcome, Sampling

SED = "sed -i 's/a - b/a + b/' solution.py"
TEMPERATURE = 0.7

BASH = [
    "Looking. " + tool_call("bash", command="ls; cat solution.py; python3 -c 'import sys; print(sys.path)'"),
    "It subtracts. " + tool_call("bash", command=SED) + "\n" + tool_call("bash", command="cat solution.py"),
    "Done, so submit. " + tool_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
]

FENCED = [
    "THOUGHT: look.\n\n```mswea_bash_command\nls && cat solution.py\n```",
    f"THOUGHT: it subtracts.\n\n```mswea_bash_command\n{SED}\n```",
    "THOUGHT: done.\n\n```mswea_bash_command\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```",
]

OPENHANDS = [
    "Look first. " + tool_call("terminal", command="cat solution.py; which -a python3"),
    "Fix it. "
    + tool_call("file_editor", command="str_replace", path="/workspace/solution.py", old_str="a - b", new_str="a + b"),
    "Done. " + tool_call("finish", message="add adds now"),
]


def keys(*commands: str, done: bool = False) -> str:
    """An answer for the terminal."""
    typed = [{"keystrokes": text, "duration": 0.3} for text in commands]
    return json.dumps({"analysis": "so far", "plan": "next", "commands": typed, "task_complete": done})


TERMINAL = [
    keys("cat solution.py\n"),
    "Here it is: " + keys("cd /", "C-c", f"cd /workspace\n{SED}\n", "tail -1 solution.py\n"),
    keys(done=True),
    keys(done=True),
]

AGENTS = {
    "mini": ("mini", BASH),
    "mini_text": ("mini", FENCED),
    "ohsdk": ("ohsdk", OPENHANDS),
    "terminus": ("terminus", TERMINAL),
}


@pytest.fixture(scope="module")
def reader() -> ToolReader:
    """vLLM's own parser of Qwen3's calls."""
    return ToolReader(tool_tokenizer(), "hermes")


@pytest.mark.parametrize("name", AGENTS)
async def test_an_unmodified_agent_solves_a_task_with_a_faithful_rollout(name, tmp_path, reader):
    runtime, script = AGENTS[name]
    await install(runtime)
    task_path = write_task(tmp_path / "add", agent_timeout=120)
    policy = SpeakingPolicy(script)
    spec = TrialSpec(
        session_id="add-0000abcd",
        group_id="g",
        task_id="add",
        task_path=task_path,
        step=1,
        sampling=Sampling(temperature=TEMPERATURE, max_tokens=1000),
    )
    async with ProxyServer(policy, ChatCodec(tool_tokenizer()), WINDOW, tools=reader) as proxy:
        result = await run_trial(spec, proxy, SandboxConfig(), ScaffoldConfig(name=name, max_turns=10))
    assert (result.outcome, result.error) == (Outcome.COMPLETED, None), result.transcript.events
    assert result.patch.files == {"solution.py": FIXED.encode()}
    verdict = await grade(Task.load(task_path), result.patch, SandboxConfig(), VerifierConfig())
    assert verdict.reward == 1.0, verdict.reason

    # What the agent starts, and so the policy, finds the repository's own Python.
    assert MOUNT not in tool_tokenizer().decode(policy.prompts[-1])
    (rollout,) = result.rollouts
    assert rollout.num_turns == len(script) == len(policy.sampled)
    sampled = [i for i, m in zip(rollout.token_ids, rollout.loss_mask, strict=True) if m]
    assert sampled == [i for ids in policy.sampled for i in ids]
    assert list(rollout.token_ids[: len(policy.prompts[-1])]) == policy.prompts[-1]
    captured = [p for p, m in zip(rollout.logprobs, rollout.loss_mask, strict=True) if m]
    assert rescored(rollout, TEMPERATURE) == pytest.approx(captured, abs=1e-4)
