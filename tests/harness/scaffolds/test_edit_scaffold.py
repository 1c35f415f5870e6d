"""The edit scaffold against a real proxy and a real sandbox; only the policy is scripted."""

import asyncio
import functools
import logging

import pytest
from pydantic import ValidationError
from support.scripted import ScriptedPolicy, generation
from support.tasks import BUGGY, FIXED, INSTRUCTION, TEST, write_task
from support.tiny import tiny_tokenizer

from harness.pool.task import Task
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.sandbox.base import SandboxConfig, create_sandbox
from harness.scaffolds.base import SCAFFOLDS, ScaffoldConfig, ScaffoldError, create_scaffold, register_scaffold
from harness.scaffolds.client import ChatClient, ProxyUnreachable
from harness.scaffolds.edit import Prompt
from trainer.rollout import Outcome, Sampling

RIGHT, WRONG = f"```python\n{FIXED}```\n", f"```python\n{BUGGY}```\n"
WINDOW = 3000


@functools.cache
def tokenizer():
    return tiny_tokenizer()


@functools.cache
def sandbox_config():
    return SandboxConfig()


async def run_edit(task_path, *script, window=WINDOW, sampling=None, **config):
    """Run the scaffold; returns its result, the workspace's solution.py, the policy and the session."""
    task, policy = Task.load(task_path), ScriptedPolicy(tokenizer(), script)
    server = ProxyServer(policy, ChatCodec(tokenizer()), window)
    async with server as proxy, create_sandbox(sandbox_config()) as sandbox:
        await sandbox.upload(task.snapshot)
        session = proxy.open_session("s", sampling or Sampling())
        result = await create_scaffold(ScaffoldConfig(**config)).run(task, sandbox, session)
        files = await sandbox.read_tree(lambda path, data: True)
    return result, {path: data.decode("latin-1") for path, data in files.files.items()}, policy, session


def asked(policy, call=0):
    return tokenizer().decode(policy.calls[call].prompt_ids)


def events(result, name):
    return [event for event in result.transcript.events if event["event"] == name]


async def test_one_turn_of_a_kata_shows_the_file_and_writes_the_answer(tmp_path):
    result, files, policy, session = await run_edit(write_task(tmp_path / "t"), f"{RIGHT}and more talk")
    assert asked(policy) == (
        f"<|im_start|>user\n{INSTRUCTION}\n\n```python\n{BUGGY}```\n\n"
        "Reply with the fixed code of solution.py in one ```python block.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert policy.calls[0].sampling.stop == ("\n```\n",)
    assert files["solution.py"] == FIXED
    assert (result.outcome, result.turns) == (Outcome.COMPLETED, 1)
    assert [m["role"] for m in result.transcript.messages] == ["user", "assistant"]
    assert session.capture.segments[0].num_sampled == len(RIGHT), "no token is spent after the closing fence"


async def test_failing_visible_tests_are_sent_back_until_they_pass(tmp_path):
    task = write_task(tmp_path / "t", {"solution.py": BUGGY, "tests/test_seen.py": TEST}, ["tests/test_seen.py"])
    result, files, policy, session = await run_edit(task, WRONG, RIGHT, max_turns=4, run_visible_tests=True)
    assert (result.outcome, result.turns) == (Outcome.COMPLETED, 2)
    assert files["solution.py"] == FIXED
    assert [event["passed"] for event in events(result, "tests_run")] == [False, True]
    assert "AssertionError: -1 != 5" in asked(policy, 1)
    assert policy.calls[1].prompt_ids[: len(policy.calls[0].prompt_ids)] == policy.calls[0].prompt_ids
    assert len(session.capture.segments) == 1
    assert set(files) == {"solution.py", "tests/test_seen.py"}, "running tests leaves nothing behind"


async def test_turns_run_out_while_the_tests_fail(tmp_path):
    task = write_task(tmp_path / "t", {"solution.py": BUGGY, "test_seen.py": TEST}, ["test_seen.py"])
    result, _, _, _ = await run_edit(task, WRONG, max_turns=2, run_visible_tests=True)
    assert (result.outcome, result.turns) == (Outcome.MAX_TURNS, 2)


async def test_a_test_run_that_hangs_is_stopped_and_told(tmp_path):
    task = write_task(tmp_path / "t", {"solution.py": BUGGY, "test_seen.py": TEST}, ["test_seen.py"])
    hang = f"```python\nimport time\ntime.sleep(600)\n{FIXED}```\n"
    options = {"max_turns": 2, "run_visible_tests": True, "visible_tests_timeout": 6}
    result, _, policy, _ = await run_edit(task, hang, RIGHT, **options)
    assert result.outcome is Outcome.COMPLETED
    assert "stopped after 6 seconds" in asked(policy, 1)


async def test_visible_tests_can_not_change_the_workspace_or_be_edited(tmp_path):
    task = write_task(tmp_path / "t", {"solution.py": BUGGY, "test_seen.py": TEST}, ["test_seen.py"])
    cheat = "```python test_seen.py\nimport unittest\n```\n"
    vandal = f"```python\nopen('test_seen.py', 'w').close()\n{FIXED}```"
    result, files, policy, _ = await run_edit(task, cheat, vandal, RIGHT, max_turns=3, run_visible_tests=True)
    assert files["test_seen.py"] == TEST
    assert "test_seen.py: this file may not be changed" in asked(policy, 1)
    assert [event["passed"] for event in events(result, "tests_run")] == [False, True]


async def test_an_answer_without_a_block_is_asked_for_again(tmp_path):
    result, files, policy, _ = await run_edit(write_task(tmp_path / "t"), "Just use plus.", RIGHT, max_turns=2)
    assert result.outcome is Outcome.COMPLETED and files["solution.py"] == FIXED
    assert "There was no ```python block in that answer\n\nReply with the fixed code" in asked(policy, 1)


async def test_an_answer_without_a_block_in_the_last_turn_ends_as_max_turns(tmp_path):
    result, files, _, _ = await run_edit(write_task(tmp_path / "t"), "Just use plus.")
    assert result.outcome is Outcome.MAX_TURNS and files["solution.py"] == BUGGY


async def test_an_answer_cut_by_length_writes_no_half_file_and_ends_as_overlong(tmp_path):
    result, files, policy, _ = await run_edit(write_task(tmp_path / "t"), RIGHT, max_tokens_per_turn=30)
    assert policy.calls[0].sampling.max_tokens == 30
    assert result.outcome is Outcome.OVERLONG and files["solution.py"] == BUGGY


async def test_a_block_closed_before_the_cut_counts(tmp_path):
    sampling = Sampling(max_tokens=len(RIGHT) - 1)
    result, files, _, _ = await run_edit(write_task(tmp_path / "t"), RIGHT, sampling=sampling)
    assert result.outcome is Outcome.COMPLETED and files["solution.py"] == FIXED


async def test_a_prompt_beyond_the_window_is_overlong_and_samples_nothing(tmp_path):
    result, _, policy, session = await run_edit(write_task(tmp_path / "t"), RIGHT, window=100)
    assert (result.outcome, result.turns) == (Outcome.OVERLONG, 0)
    assert policy.calls == [] and session.overlong


async def test_a_conversation_that_outgrows_the_window_is_overlong(tmp_path):
    result, _, _, session = await run_edit(write_task(tmp_path / "t"), "no " * 150, max_turns=9, window=900)
    assert result.outcome is Outcome.OVERLONG and session.capture.num_turns >= 1


async def test_a_repository_far_too_large_is_overlong(tmp_path):
    task = write_task(tmp_path / "t", {"solution.py": BUGGY, "data.txt": "x" * (2 * 2**20)})
    result, _, policy, _ = await run_edit(task, RIGHT)
    assert result.outcome is Outcome.OVERLONG and policy.calls == []


async def test_several_files_are_shown_by_name_and_written_by_name(tmp_path):
    repository = {"solution.py": BUGGY, "pkg/util.py": "X = 1", "logo.bin": b"\0\xff", "l1": b"\xe9"}
    task = write_task(tmp_path / "t", repository)
    answer = (
        f"```python solution.py\n{FIXED}```\nand\n```python pkg/new.py\nY = 2\n```\n```python solution.py/x\n1\n```"
    )
    result, files, policy, _ = await run_edit(task, answer)
    assert "pkg/util.py:\n```python\nX = 1\n```\n\nsolution.py:\n```python\n" in asked(policy)
    assert "logo.bin" not in asked(policy) and "l1:" not in asked(policy)
    assert policy.calls[0].sampling.stop == ()
    assert files["solution.py"] == FIXED and files["pkg/new.py"] == "Y = 2\n" and files["pkg/util.py"] == "X = 1"
    assert result.outcome is Outcome.COMPLETED
    assert "solution.py" in events(result, "block_refused")[0]["reason"]


@pytest.mark.parametrize("path", ["../evil.py", "/tmp/evil.py", ".git/hooks/pre-commit"])
async def test_paths_that_lead_out_are_refused_and_nothing_is_written(tmp_path, path):
    result, files, _, _ = await run_edit(write_task(tmp_path / "t"), f"```python {path}\nx\n```\n")
    assert result.outcome is Outcome.MAX_TURNS
    assert files == {"solution.py": BUGGY}
    assert events(result, "block_refused")


async def test_any_ids_at_all_are_an_answer(tmp_path):
    result, _, _, _ = await run_edit(write_task(tmp_path / "t"), generation(list(range(256)) * 2), max_turns=2)
    assert result.outcome is Outcome.MAX_TURNS


async def test_a_failing_policy_is_unreachable(tmp_path):
    with pytest.raises(ProxyUnreachable, match="engine is dead"):
        await run_edit(write_task(tmp_path / "t"), RuntimeError("engine is dead"))


async def test_neither_log_nor_error_of_the_http_client_tells_the_secret(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    _, _, _, session = await run_edit(write_task(tmp_path / "t"), RIGHT)
    assert session.secret not in caplog.text

    async def garble(reader, writer):
        writer.write(b"HTTP/9 what\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(garble, "127.0.0.1", 0) as server:
        session.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with ChatClient(session) as policy:
            with pytest.raises(ProxyUnreachable, match=r"/s/\*\*\*/v1/chat/completions") as error:
                await policy.complete([])
    assert session.secret not in str(error.value)


def test_a_file_with_fences_gets_longer_ones():
    prompt = Prompt("Mend it.", {"README.md": "see\n```\nx\n```\n"})
    assert prompt.stop == ["\n````\n"]
    assert "````markdown\nsee\n```\nx\n```\n````\n\nReply" in prompt.question


def test_running_tests_that_nobody_reads_is_refused():
    with pytest.raises(ValidationError, match="set max_turns to 2 or more"):
        ScaffoldConfig(run_visible_tests=True)


def test_an_unknown_scaffold_names_the_known_ones():
    with pytest.raises(ScaffoldError, match=r"registered are .*edit"):
        create_scaffold(ScaffoldConfig(name="nope"))


def test_a_name_is_registered_once():
    with pytest.raises(ScaffoldError, match="already"):
        register_scaffold("edit")(SCAFFOLDS["edit"])
