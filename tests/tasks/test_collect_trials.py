"""The fan-out of a collection in real sandboxes: only the policy is scripted."""

import functools
import re
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from support.faulty import Fault, Faults
from support.journals import make_run
from support.scripted import ScriptedPolicy
from support.tasks import FIXED, write_task
from support.tiny import tiny_tokenizer

from harness.budgets import BudgetConfig
from harness.pool.index import TaskPointer
from harness.proxy.codec import ChatCodec
from harness.sandbox.base import SANDBOXES, SandboxConfig, SandboxUnavailable, require_isolation
from tasks import collect_trials as module
from tasks.collect_trials import fill
from tasks.collection import LABEL, CollectionSettings, missing, standing, write_groups
from tasks.draw import groups_path, read_groups
from tasks.progress import watching
from tasks.trial_files import load_trial
from trainer.rollout import Outcome, Sampling

RIGHT = f"```python\n{FIXED}```\n"
WRONG = "```python\ndef add(a, b):\n    return 0\n```\n"
NAMES = ("alpha", "beta")


@functools.cache
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture
def settings():
    try:
        require_isolation(SandboxConfig())
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation here: {error}")
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)  # the sandbox may run as another user
        yield CollectionSettings(
            sampling=Sampling(max_tokens=300), sandbox=SandboxConfig(root=Path(root)), concurrency=2, infra_attempts=1,
            budgets=BudgetConfig(backoff_sec=0.01), lost_in_a_row=3,
        )  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """A collection of two tasks with two attempts, on quick tests."""
    run = make_run(tmp_path)
    write_groups(run, [TaskPointer(name, _quick(tmp_path / "pool" / name)) for name in NAMES], 2)
    return run


def _quick(path):
    """A task whose hidden tests take a shell and no Python."""
    write_task(path)
    config = path / "task.toml"
    config.write_text(config.read_text().partition("[metadata]")[0] + '[metadata]\nreport = "script"\n')
    (path / "tests" / "test.sh").write_text(
        'case "$(cat /workspace/solution.py)" in *"a + b"*) reward=1;; *) reward=0;; esac\n'
        "echo $reward > /logs/verifier/reward.txt\n"
    )
    return path


def answers(**by_task):
    """Answers in turn by the task that a session is of; the last one again when they run out."""
    asked = Counter()

    def answer(call):
        name = re.match(r"[a-z]+", call.session_id).group()
        asked[name] += 1
        return by_task[name][min(asked[name], len(by_task[name])) - 1]

    return ScriptedPolicy(tokenizer(), [answer])


async def filled(run, settings, policy, **options):
    return await fill(run, policy, ChatCodec(tokenizer()), settings, **options)


def statuses(run):
    trials = [load_trial(folder) for folder in run.journal.trials(LABEL)]
    return Counter((t.record["task_id"], str(t.verdict.status) if t.verdict else str(t.outcome)) for t in trials)


async def test_every_attempt_is_made_and_graded_once(run, settings):
    events = []
    policy = answers(alpha=[RIGHT, WRONG], beta=[RIGHT])
    with watching(events.append):
        done = await filled(run, settings, policy)
    assert (done["counted"], done["lost"], done["stopped"]) == (4, 0, None)
    assert statuses(run) == {("alpha", "passed"): 1, ("alpha", "failed"): 1, ("beta", "passed"): 2}
    tasks = [re.match(r"[a-z]+", call.session_id).group() for call in policy.calls]
    assert set(tasks[:2]) == set(NAMES), "first one attempt at each"
    last = events[-1]
    assert (last.done, last.total, last.data) == (4, 4, {"passed": 3, "failed": 1, "lost": 0})
    again = answers(alpha=[WRONG], beta=[WRONG])
    assert (await filled(run, settings, again))["counted"] == 0 and not again.calls


async def test_a_dead_policy_is_no_failure_and_its_trials_are_made_again(run, settings):
    asked = []

    async def still_serving():
        asked.append(1)

    broken = answers(alpha=[RuntimeError("the engine is away"), WRONG], beta=[RIGHT])
    done = await filled(run, settings, broken, still_serving=still_serving)
    assert (done["counted"], done["lost"], len(asked)) == (3, 1, 1)
    before = set(run.journal.trials(LABEL))
    done = await filled(run, settings, answers(alpha=[RIGHT], beta=[WRONG]))
    assert (done["counted"], done["lost"]) == (1, 0), "the lost one, and no other"
    assert before < set(run.journal.trials(LABEL))
    found = {("alpha", "infra_error"): 1, ("alpha", "passed"): 1, ("alpha", "failed"): 1, ("beta", "passed"): 2}
    assert statuses(run) == found


async def test_a_serving_side_that_died_stops_all_and_costs_no_trial(run, settings):
    async def still_serving():
        raise ConnectionError("no replica answers")

    with pytest.raises(ConnectionError, match="no replica answers"):
        await filled(run, settings, answers(alpha=[RuntimeError()], beta=[RuntimeError()]), still_serving=still_serving)
    assert not run.journal.trials(LABEL)
    assert (await filled(run, settings, answers(alpha=[RIGHT], beta=[RIGHT])))["counted"] == 4


async def test_a_trial_without_verdict_is_graded_and_not_made_again(run, settings):
    await filled(run, settings, answers(alpha=[RIGHT], beta=[RIGHT]))
    folders = run.journal.trials(LABEL)
    (folders[0] / "verdict.json").unlink()
    policy = answers(alpha=[WRONG], beta=[WRONG])
    assert (await filled(run, settings, policy))["counted"] == 1
    assert not policy.calls and run.journal.trials(LABEL) == folders
    assert statuses(run) == {("alpha", "passed"): 2, ("beta", "passed"): 2}


async def test_a_broken_machine_is_left_alone_before_all_trials_are_spent(run, settings, monkeypatch, tmp_path):
    faults = Faults(lambda trial, n: Fault("start", "dies"))
    monkeypatch.setitem(SANDBOXES, "faulty", faults.backend())
    broken = settings.model_copy(
        update={"sandbox": settings.sandbox.model_copy(update={"backend": "faulty"}), "concurrency": 1}
    )
    groups = read_groups(groups_path(run.journal.root))
    write_groups(run, [TaskPointer(group.task_id, group.task_path) for group in groups], 8)
    done = await filled(run, broken, answers(alpha=[RIGHT], beta=[RIGHT]))
    assert done["counted"] == 0 and 3 <= done["lost"] <= 4
    assert done["stopped"].startswith(f"the last {done['lost']} trials were all lost")
    groups = read_groups(groups_path(run.journal.root))
    assert len(missing(groups, standing(run, groups).ended)) == 16


async def test_a_task_that_cannot_be_graded_costs_its_own_trials_only(run, settings, monkeypatch):
    grade = module.grade_with_retries

    async def refuse(task, *args, **options):
        if task.task_id == "beta":
            raise module.GradingError("no such way of grading")
        return await grade(task, *args, **options)

    monkeypatch.setattr(module, "grade_with_retries", refuse)
    done = await filled(run, settings, answers(alpha=[RIGHT], beta=[RIGHT]))
    assert (done["counted"], done["lost"]) == (2, 2)
    assert statuses(run) == {("alpha", "passed"): 2, ("beta", "infra_error"): 2}
    assert {load_trial(f).outcome for f in run.journal.trials(LABEL)} == {Outcome.COMPLETED}
