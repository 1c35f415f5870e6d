"""The fan-out: exactly the missing trials of a draw, each sampled as its group asks."""

from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from support.journals import make_result, make_run
from support.scripted import ScriptedPolicy
from support.tiny import tiny_tokenizer

from harness.budgets import BudgetConfig
from harness.pool.index import TaskPointer
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from tasks import fan_out as module
from tasks import served_policy
from tasks.draw import as_groups, groups_path, groups_table
from tasks.fan_out import greedily
from tasks.journal import write_table
from tasks.run_trials import missing_trials, run_trials
from tasks.trial_files import load_trial
from trainer.rollout import Outcome, Sampling
from trainer.serving.config import ServingConfig

LABEL = "step_000001"
SAMPLING = Sampling(0.7, 1.0, 64)


@pytest.fixture
def launched(monkeypatch):
    """Specs of the trials that were run; proxy, engines and sandboxes are away."""
    specs = []

    async def run_trial(spec, *args, attempts):
        specs.append(spec)
        result = make_result(spec.session_id, spec.group_id)
        return replace(result, spec=spec)

    @asynccontextmanager
    async def proxy(*args, **options):
        yield None

    class Pool:
        @classmethod
        async def attach_serving(cls, name, admission):
            return cls()

    for name, value in {
        "run_trial_with_retries": run_trial,
        "ProxyServer": proxy,
        "require_isolation": lambda sandbox: None,
        "reaping": proxy,
    }.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(served_policy, "ReplicaPool", Pool)
    monkeypatch.setattr(served_policy, "_voices", lambda *names: (None, None))
    return specs


@pytest.fixture
def run(tmp_path):
    run = make_run(tmp_path)
    for refill, names in enumerate(("ab", "c")):
        groups = as_groups(
            [TaskPointer(n, tmp_path / n, extra={"scaffold": {"a": "cc"}.get(n)}) for n in names], LABEL, 3, greedy=True
        )
        write_table(groups_path(run.journal.stage_dir(LABEL), refill), groups_table(groups))
    return run


async def run_draw(run, refill=0, serving=ServingConfig()):  # noqa: B008  (frozen)
    class Sandbox:
        root = run.root

    return await run_trials.fn(
        run, LABEL, 1, run.root, serving, SAMPLING, Sandbox(), None, BudgetConfig(), 4, 1, refill
    )  # fmt: skip


async def test_one_setting_of_parsers(run, launched, monkeypatch):
    asked = []
    monkeypatch.setattr(served_policy, "_voices", lambda model, *parsers: asked.append(parsers) or (None, None))
    await run_draw(run, serving=ServingConfig(tool_call_parser="hermes", reasoning_parser="qwen3"))
    assert asked == [("hermes", "qwen3")]


async def test_a_draw_runs_its_own_trials_once(run, launched):
    assert (await run_draw(run))["outcomes"]["completed"] == 8
    assert {(spec.task_id, spec.scaffold) for spec in launched} == {("a", "cc"), ("b", None)} and len(launched) == 8
    assert (await run_draw(run, 1))["outcomes"]["completed"] == 4
    assert [spec.task_id for spec in launched[8:]] == ["c"] * 4
    for refill in (0, 1):
        await run_draw(run, refill)
    assert len(launched) == 12


async def test_a_restart_runs_what_is_missing_of_each_draw(run, launched):
    for refill in (0, 1):
        await run_draw(run, refill)
    trials = [load_trial(folder) for folder in run.journal.trials(LABEL)]
    lost = [next(t for t in trials if t.group_id == f"{LABEL}/{name}") for name in ("a", "c", "b#greedy")]
    for trial in lost:
        (trial.folder / "trial.json").unlink()
    launched.clear()
    for refill in (0, 1):
        await run_draw(run, refill)
    assert sorted(spec.group_id for spec in launched) == sorted(trial.group_id for trial in lost)
    assert len(run.journal.trials(LABEL)) == 12


async def test_greedy_trials_are_sampled_greedily_and_the_others_not(run, launched):
    await run_draw(run)
    temperatures = {spec.group_id: spec.sampling.temperature for spec in launched}
    assert temperatures == {f"{LABEL}/{n}": 0.7 for n in "ab"} | {f"{LABEL}/{n}#greedy": 0.0 for n in "ab"}
    assert {spec.sampling.max_tokens for spec in launched} == {64}


def test_missing_trials():
    groups = as_groups([TaskPointer("a", None), TaskPointer("b", None)], LABEL, 3)
    assert [g.task_id for g in missing_trials(groups, {f"{LABEL}/a": 2, "other": 9})] == ["a", "b", "b", "b"]
    assert missing_trials(groups, {f"{LABEL}/a": 3, f"{LABEL}/b": 4}) == []


async def test_the_proxy_captures_a_greedy_rollout():
    """Its log-probs are those at temperature 1, finite and below 0: the record's invariants hold."""
    policy = ScriptedPolicy(tiny_tokenizer(), ["so be it"])
    async with ProxyServer(policy, ChatCodec(tiny_tokenizer()), 2000) as proxy, httpx.AsyncClient(timeout=60) as client:
        session = proxy.open_session("s", greedily(Sampling(0.7, 0.9, 20)))
        body = {"messages": [{"role": "user", "content": "mend it"}], "temperature": 1.0}
        answer = await client.post(f"{session.base_url}/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
    (call,) = policy.calls
    assert (call.sampling.temperature, call.sampling.top_p, call.sampling.max_tokens) == (0.0, 1.0, 20)
    ids = {"session_id": "s", "task_id": "a", "group_id": "a#greedy", "step": 1}
    (rollout,) = session.capture.rollouts("longest", outcome=Outcome.COMPLETED, **ids)
    assert rollout.response_length == sum(rollout.loss_mask) > 0
