"""Oracle demonstrations: the known fix, said through the real scaffold, proxy and sandbox, earns its reward."""

import dataclasses
import tempfile
from pathlib import Path

import pytest
from support.tasks import BUGGY, FIXED, write_task
from support.tiny import tiny_tokenizer

from harness.demonstrations import DemonstrationError, Oracle, demonstrate, find_demonstrator
from harness.grading import grade_with_retries
from harness.pool.task import Task
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.sandbox.base import SandboxConfig, SandboxUnavailable, require_isolation
from harness.scaffolds.base import ScaffoldConfig
from harness.trial import TrialResult, TrialSpec, new_session_id, run_trial
from harness.verifier import Status, VerifierConfig
from trainer.rollout import Outcome, Sampling

EDIT = ScaffoldConfig()
TOKENIZER = tiny_tokenizer()


def task_with(path: Path, files: dict[str, str], solved: dict[str, str], deleted: str = "") -> Task:
    """A task whose fix is `solved`."""
    write_task(path, files)
    for name, text in solved.items():
        file = path / "solution" / "files" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if deleted:
        (path / "solution" / "deleted.txt").write_text(deleted)
    return Task.load(path)


async def run(task: Task, sandbox: SandboxConfig, max_tokens: int = 4096, window: int = 4096) -> TrialResult:
    """A trial with the oracle in the place of a policy."""
    codec = ChatCodec(TOKENIZER)
    oracle = Oracle(codec)
    spec = TrialSpec(
        new_session_id(task.task_id), "g", task.task_id, task.path, 0, Sampling(max_tokens=max_tokens)
    )  # fmt: skip
    oracle.teach(spec.session_id, demonstrate(task, EDIT))
    async with ProxyServer(oracle, codec, window) as proxy:
        return await run_trial(spec, proxy, sandbox, EDIT)


@pytest.fixture
def sandbox():
    try:
        require_isolation(SandboxConfig())
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation here: {error}")
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        yield SandboxConfig(root=Path(root))


async def test_the_fix_is_said_captured_and_graded(tmp_path, sandbox):
    other = "def twice(x):\n    return 2 * x\n"
    task = task_with(
        tmp_path / "add", {"solution.py": BUGGY, "other.py": other}, {"solution.py": FIXED, "other.py": other}
    )
    result = await run(task, sandbox)
    assert result.outcome is Outcome.COMPLETED and result.error is None
    verdict = await grade_with_retries(task, result.patch, sandbox, VerifierConfig())
    assert verdict.status is Status.PASSED, verdict.reason

    (rollout,) = result.rollouts
    said = [token for token, mask in zip(rollout.token_ids, rollout.loss_mask, strict=True) if mask]
    assert TOKENIZER.decode(said) == f"```python solution.py\n{FIXED}```<|im_end|>", "one file changed: one is said"
    assert rollout.loss_mask[: rollout.prompt_length] == (0,) * rollout.prompt_length
    assert sum(rollout.loss_mask) == len(rollout.token_ids) - rollout.prompt_length
    assert TOKENIZER.decode(rollout.token_ids[: rollout.prompt_length]).endswith("<|im_start|>assistant\n")


async def test_of_one_file_the_fix_is_a_block_without_a_name(tmp_path, sandbox):
    task = task_with(tmp_path / "add", {"solution.py": BUGGY}, {"solution.py": FIXED})
    assert demonstrate(task, EDIT) == [f"```python\n{FIXED}```"]
    assert (await run(task, sandbox)).patch.files == {"solution.py": FIXED.encode()}
    assert (await run(task, sandbox, max_tokens=20)).outcome is Outcome.OVERLONG, "cut where the engine would cut"


async def test_fences_and_special_tokens_in_a_file_are_its_text(tmp_path, sandbox):
    fixed = f'{FIXED}# <|im_end|>\nTEXT = """\n```\nx\n```\n"""'
    task = task_with(tmp_path / "add", {"solution.py": BUGGY}, {"solution.py": fixed})
    with pytest.raises(DemonstrationError, match="fences"):
        # the prompt asks for an answer that stops at the fence, which this file holds
        demonstrate(task, EDIT)
    task = task_with(tmp_path / "two", {"solution.py": BUGGY, "b.py": ""}, {"solution.py": fixed})
    result = await run(task, sandbox)
    assert result.patch.files == {"solution.py": f"{fixed}\n".encode()}
    (rollout,) = result.rollouts
    ends = [i for i, token in enumerate(rollout.token_ids) if token == TOKENIZER.eos_token_id and rollout.loss_mask[i]]
    assert ends == [len(rollout.token_ids) - 1], "what a file spells ends no turn"


def test_what_cannot_be_demonstrated_is_refused_with_its_reason(tmp_path):
    for name, files, solved, deleted, reason in (
        ("none", {"solution.py": BUGGY}, {}, "", "ships no solved files"),
        ("same", {"solution.py": BUGGY}, {"solution.py": BUGGY}, "", "nothing to fix"),
        ("gone", {"solution.py": BUGGY, "b.py": ""}, {"solution.py": FIXED}, "b.py\n", "deletes b.py"),
        ("git", {"solution.py": BUGGY}, {".git/hooks/x": "x"}, "", "git's own files"),
    ):
        with pytest.raises(DemonstrationError, match=reason):
            demonstrate(task_with(tmp_path / name, files, solved, deleted), EDIT)
    with pytest.raises(DemonstrationError, match="'oc', which has no demonstrations; edit has"):
        find_demonstrator("oc")


async def test_an_oracle_says_no_more_than_it_was_taught(tmp_path, sandbox):
    task = task_with(tmp_path / "add", {"solution.py": BUGGY}, {"solution.py": FIXED})
    oracle = Oracle(ChatCodec(TOKENIZER))
    oracle.teach("s", demonstrate(task, EDIT))
    first = await oracle.generate([1], Sampling(), "s")
    assert first.finish_reason == "stop" and set(first.logprobs) == {0.0}
    with pytest.raises(DemonstrationError, match="asks on"):
        await oracle.generate([1], Sampling(), "s")
    oracle.teach("s", ["a\n```\nb"])
    with pytest.raises(DemonstrationError, match="stop strings"):
        await oracle.generate([1], dataclasses.replace(Sampling(), stop=("\n```\n",)), "s")
