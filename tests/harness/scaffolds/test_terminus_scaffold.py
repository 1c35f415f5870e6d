"""The terminus scaffold against a real proxy and a real terminal; only the policy is scripted."""

import asyncio
import functools
import json

import pytest
from support.scripted import ScriptedPolicy
from support.tasks import FIXED, INSTRUCTION, write_task
from support.tiny import tiny_tokenizer

from harness.pool.task import Task
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.sandbox.base import SandboxConfig, create_sandbox
from harness.scaffolds import terminus as terminus_module
from harness.scaffolds.base import ScaffoldConfig, create_scaffold
from harness.scaffolds.terminus import MAX_SHOWN_CHARS, shortened
from trainer.rollout import Outcome, Sampling

WINDOW = 30_000
FIX = "sed -i 's/a - b/a + b/' solution.py\n"


@functools.cache
def tokenizer():
    return tiny_tokenizer()


def keys(*texts, done=False, seconds=2.0):
    commands = [{"keystrokes": text, "duration": seconds} for text in texts]
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": done})


async def run_terminus(task_path, *script, window=WINDOW, max_tokens=2000, **config):
    """Run the scaffold; returns its result, the workspace's solution.py, and the prompts of the policy as texts."""
    task, policy = Task.load(task_path), ScriptedPolicy(tokenizer(), script)
    server = ProxyServer(policy, ChatCodec(tokenizer()), window)
    settings = ScaffoldConfig(name="terminus", **{"max_turns": 8} | config)
    async with server as proxy, create_sandbox(SandboxConfig()) as sandbox:
        scaffold = create_scaffold(settings)
        await scaffold.prepare(sandbox)
        await sandbox.upload(task.snapshot)
        session = proxy.open_session("s", Sampling(max_tokens=max_tokens))
        result = await scaffold.run(task, sandbox, session)
        solution = await sandbox.read_file("solution.py", 1000)
    return result, solution.decode(), [tokenizer().decode(call.prompt_ids) for call in policy.calls]


def events(result, name):
    return [event for event in result.transcript.events if event["event"] == name]


async def test_the_policy_works_until_it_twice_says_that_it_is_done(tmp_path):
    script = [keys("cat solution.py\n"), keys(FIX, "cat solution.py\n", done=True), keys(done=True)]
    result, solution, prompts = await run_terminus(write_task(tmp_path / "t"), *script)
    assert (result.outcome, result.turns, solution) == (Outcome.COMPLETED, 3, FIXED)
    assert INSTRUCTION in prompts[0] and "$" in prompts[0].split("The terminal shows:")[1]
    assert "return a - b" in prompts[1].split("The terminal shows:")[2]
    shown = prompts[2].split("The terminal shows:")[3]
    assert "return a + b" in shown and "return a - b" not in shown and "Are you sure" in shown


async def test_one_who_goes_on_after_all_is_asked_again(tmp_path):
    script = [keys(done=True), keys("echo more\n"), keys(done=True), keys(done=True)]
    result, _, prompts = await run_terminus(write_task(tmp_path / "t"), *script)
    assert (result.outcome, result.turns) == (Outcome.COMPLETED, 4)
    assert ["Are you sure" in prompt.split("assistant")[-2] for prompt in prompts[1:]] == [True, False, True]


async def test_an_answer_that_is_none_types_nothing_and_is_answered(tmp_path):
    bad = '{"commands": [{"keystrokes": "rm solution.py\\n"}], "task_complete": "no idea"}'
    result, solution, prompts = await run_terminus(write_task(tmp_path / "t"), bad, "so be it", max_turns=2)
    assert (result.outcome, result.turns) == (Outcome.MAX_TURNS, 2)
    assert solution and 'Nothing was typed: "task_complete" must be true or false' in prompts[1]
    assert len(events(result, "answer_refused")) == 2 and not events(result, "typed")


async def test_the_last_turn_is_still_typed(tmp_path):
    result, solution, _ = await run_terminus(write_task(tmp_path / "t"), keys(FIX), max_turns=1)
    assert (result.outcome, solution) == (Outcome.MAX_TURNS, FIXED)


async def test_an_answer_that_was_cut_is_told_so(tmp_path):
    _, _, prompts = await run_terminus(write_task(tmp_path / "t"), keys("x" * 500), max_tokens=200, max_turns=2)
    assert "Your answer was cut off because it is too long." in prompts[1]


async def test_a_conversation_beyond_the_window_is_overlong(tmp_path):
    result, _, prompts = await run_terminus(write_task(tmp_path / "t"), keys("seq 2000\n"), window=6000)
    assert result.outcome is Outcome.OVERLONG and len(prompts) == 1


async def test_ending_the_terminal_ends_the_trial_with_what_was_done(tmp_path):
    script = [keys(FIX), keys("exit\n"), keys("echo never\n")]
    result, solution, prompts = await run_terminus(write_task(tmp_path / "t"), *script)
    assert (result.outcome, solution, len(prompts)) == (Outcome.COMPLETED, FIXED, 2)
    assert "tmux" in events(result, "terminal_gone")[0]["reason"]


async def test_long_waits_are_bounded_by_the_answer_not_by_hope(tmp_path, monkeypatch):
    waited = []
    sleep = asyncio.sleep

    async def short(seconds):
        waited.append(seconds)
        await sleep(0)

    monkeypatch.setattr(terminus_module.asyncio, "sleep", short)
    await run_terminus(write_task(tmp_path / "t"), keys("true\n", seconds=86_400), max_turns=1)
    assert max(waited) == terminus_module.MAX_SECONDS


@pytest.mark.parametrize("length", [MAX_SHOWN_CHARS, MAX_SHOWN_CHARS + 1, 10 * MAX_SHOWN_CHARS])
def test_long_output_keeps_its_ends(length):
    text = "a" * (length // 2) + "z" * (length - length // 2)
    short = shortened(text)
    assert len(short) <= MAX_SHOWN_CHARS + 60
    assert (short == text) == (length == MAX_SHOWN_CHARS)
    assert short.startswith("a" * 1000) and short.endswith("z" * 1000)
    assert length == MAX_SHOWN_CHARS or f"{length - MAX_SHOWN_CHARS} characters are left out" in short
