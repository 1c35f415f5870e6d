"""Trials end to end: real proxy, real sandbox, real patch; only the policy is scripted."""

import asyncio
import functools
import json
import tempfile
from pathlib import Path

import httpx
import pytest
from support.scripted import ScriptedPolicy
from support.tasks import BUGGY, FIXED, write_task
from support.tiny import tiny_tokenizer

from harness import trial as trial_module
from harness.budgets import BudgetConfig
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.sandbox.base import SandboxConfig, SandboxError, SandboxUnavailable, create_sandbox, require_isolation
from harness.sandbox.owner import current_owner, owned_by
from harness.scaffolds.base import SCAFFOLDS, Scaffold, ScaffoldConfig
from harness.trajectory import trajectory_of
from harness.trial import TrialSpec, new_session_id, run_trial, run_trial_with_retries
from trainer.rollout import Outcome, Sampling

RIGHT = f"```python\n{FIXED}```\n"
EDIT = ScaffoldConfig()
QUICK = BudgetConfig(backoff_sec=0.01)


@functools.cache
def tokenizer():
    return tiny_tokenizer()


@functools.cache
def isolated():
    try:
        require_isolation(SandboxConfig())
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation here: {error}")


@pytest.fixture
def config():
    isolated()
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)  # the sandbox may run as another user
        yield SandboxConfig(root=Path(root))


@pytest.fixture
def task_path(tmp_path):
    return write_task(tmp_path / "add")


@pytest.fixture
def scaffolds(monkeypatch):
    """Registers scaffolds for one test: `scaffolds(run_function)` returns the config that names it."""

    def add(run):
        monkeypatch.setitem(SCAFFOLDS, "test", type("TestScaffold", (Scaffold,), {"run": run}))
        return ScaffoldConfig(name="test")

    return add


def proxy_for(*script, **options):
    policy = ScriptedPolicy(tokenizer(), script, **options)
    return ProxyServer(policy, ChatCodec(tokenizer()), 2000), policy


def spec_for(task_path, **changes):
    fields = {"session_id": "add-0000abcd", "group_id": "g7", "task_id": "add", "task_path": task_path, "step": 3}
    return TrialSpec(**fields | {"sampling": Sampling(max_tokens=300)} | changes)


async def ask(session, *messages, **options):
    """Have the policy answer a user who says hello, after these messages."""
    body = {"messages": [*messages, {"role": "user", "content": "hello"}]} | options
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        assert (await http.post(f"{session.base_url}/chat/completions", json=body)).status_code == 200


def assert_clean(config, proxy):
    """No workspace and no live session is left."""
    assert list(config.root.rglob("solution.py")) == []
    assert proxy._sessions == {}


async def test_a_trial_leaves_a_rollout_a_patch_and_a_record(config, task_path):
    server, policy = proxy_for(RIGHT)
    async with server as proxy:
        result = await run_trial(spec_for(task_path), proxy, config, EDIT)
        assert_clean(config, proxy)
    assert (result.outcome, result.error) == (Outcome.COMPLETED, None)
    assert result.patch.files == {"solution.py": FIXED.encode()}
    (rollout,) = result.rollouts
    assert (rollout.session_id, rollout.group_id, rollout.task_id, rollout.step) == ("add-0000abcd", "g7", "add", 3)
    assert rollout.outcome is Outcome.COMPLETED
    assert tokenizer().decode(rollout.token_ids[rollout.prompt_length :]) == RIGHT
    assert policy.calls[0].session_id == "add-0000abcd"
    record = json.loads(json.dumps(result.to_json()))
    assert record["outcome"] == "completed" and record["turns"] == 1 and record["attempt"] == 1
    assert record["patch_files"] == ["solution.py"] and record["response_length"] == len(RIGHT)
    assert {"sandbox_start", "agent", "patch", "sandbox_stop", "generate"} <= set(record["timings"])
    assert "token_ids" not in json.dumps(record)
    assert json.loads(json.dumps(result.transcript.to_json()))["messages"][1]["content"] == RIGHT[:-5]


async def test_the_agents_time_is_limited_and_what_it_did_so_far_counts(config, task_path, scaffolds):
    async def run(self, task, sandbox, session):
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            body = {"messages": [{"role": "user", "content": "hello"}]}
            await http.post(f"{session.base_url}/chat/completions", json=body)
        await sandbox.write_file("solution.py", b"X = 1\n")
        self.transcript.say("assistant", "so far")
        await asyncio.sleep(600)

    server, _ = proxy_for("hi")
    async with server as proxy:
        scaffold = scaffolds(run).model_copy(update={"agent_timeout": 6.0})
        result = await run_trial(spec_for(task_path), proxy, config, scaffold)
        assert_clean(config, proxy)
    assert (result.outcome, result.error) == (Outcome.AGENT_TIMEOUT, None)
    assert result.rollouts[0].outcome is Outcome.AGENT_TIMEOUT and result.rollouts[0].response_length == 3
    assert result.patch.files == {"solution.py": b"X = 1\n"}
    assert result.transcript.messages[-1]["content"] == "so far"


async def test_a_timeout_during_a_generation_stops_it(config, task_path):
    server, policy = proxy_for(RIGHT, delay=600)
    async with server as proxy:
        result = await run_trial(spec_for(task_path), proxy, config, ScaffoldConfig(agent_timeout=1.0))
        assert policy.running == 0
    assert result.outcome is Outcome.AGENT_TIMEOUT
    assert result.rollouts == [] and result.patch.files == {}


async def test_the_tasks_own_limit_holds_when_the_config_sets_none(config, tmp_path):
    server, _ = proxy_for(RIGHT, delay=600)
    async with server as proxy:
        result = await run_trial(spec_for(write_task(tmp_path / "t", agent_timeout=1)), proxy, config, EDIT)
    assert result.outcome is Outcome.AGENT_TIMEOUT


async def test_a_prompt_beyond_the_window_is_overlong_without_a_rollout(config, tmp_path):
    task_path = write_task(tmp_path / "t", {"solution.py": BUGGY + "#" * 3000})
    server, _ = proxy_for(RIGHT)
    async with server as proxy:
        result = await run_trial(spec_for(task_path), proxy, config, EDIT)
    assert (result.outcome, result.rollouts, result.error) == (Outcome.OVERLONG, [], None)
    assert result.patch.files == {}


async def test_a_failing_policy_is_an_infra_error_with_its_text(config, task_path):
    server, _ = proxy_for(RuntimeError("engine is dead"))
    async with server as proxy:
        result = await run_trial(spec_for(task_path), proxy, config, EDIT)
        assert_clean(config, proxy)
    assert result.outcome is Outcome.INFRA_ERROR
    assert "engine is dead" in result.error
    assert result.rollouts == [] and result.patch is None
    assert result.to_json()["outcome"] == "infra_error"


async def test_an_agent_that_swallows_a_policy_failure_is_an_infra_error_all_the_same(config, task_path, scaffolds):
    async def run(self, task, sandbox, session):
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            body = {"messages": [{"role": "user", "content": "hello"}]}
            for _ in range(2):
                await http.post(f"{session.base_url}/chat/completions", json=body)
        return self.result(Outcome.COMPLETED)

    server, _ = proxy_for(RuntimeError("engine hiccup"), "fine")
    async with server as proxy:
        result = await run_trial(spec_for(task_path), proxy, config, scaffolds(run))
    assert result.outcome is Outcome.INFRA_ERROR and "engine hiccup" in result.error


async def test_an_agent_that_crashes_is_graded_as_it_stands(config, task_path, scaffolds):
    async def run(self, task, sandbox, session):
        await ask(session)
        await sandbox.write_file("solution.py", b"X = 1\n")
        raise KeyError("the policy said something odd")

    server, _ = proxy_for("hi")
    async with server as proxy:
        result = await run_trial(spec_for(task_path), proxy, config, scaffolds(run))
        assert_clean(config, proxy)
    assert result.outcome is Outcome.COMPLETED and "something odd" in result.error
    assert result.patch.files == {"solution.py": b"X = 1\n"}


async def test_a_timeout_error_of_the_agents_own_is_no_agent_timeout(config, task_path, scaffolds):
    async def run(self, task, sandbox, session):
        await ask(session)
        raise TimeoutError("own")

    server, _ = proxy_for("hi")
    async with server as proxy:
        result = await run_trial(spec_for(task_path), proxy, config, scaffolds(run))
    assert result.outcome is Outcome.COMPLETED and "own" in result.error


async def test_an_agent_that_fails_before_the_policy_spoke_is_an_infra_error(config, task_path, scaffolds):
    """Nothing that the policy did can have caused it: an agent that is not installed, say."""

    async def run(self, task, sandbox, session):
        raise FileNotFoundError("no such agent")

    server, _ = proxy_for("hi")
    async with server as proxy:
        result = await run_trial(spec_for(task_path), proxy, config, scaffolds(run))
    assert (result.outcome, result.error) == (Outcome.INFRA_ERROR, "FileNotFoundError: no such agent")


@pytest.mark.parametrize(
    ("told", "overlong", "exhausted", "outcome"),
    [
        (Outcome.COMPLETED, False, False, Outcome.COMPLETED),
        (Outcome.COMPLETED, False, True, Outcome.MAX_TURNS),
        (Outcome.COMPLETED, True, True, Outcome.OVERLONG),
        (Outcome.MAX_TURNS, True, False, Outcome.OVERLONG),
        (Outcome.MAX_TURNS, False, False, Outcome.MAX_TURNS),
        (None, True, True, Outcome.AGENT_TIMEOUT),
    ],
)
async def test_the_session_knows_better_how_a_trial_ended(
    config, task_path, scaffolds, told, overlong, exhausted, outcome
):
    async def run(self, task, sandbox, session):
        await ask(session)
        session.overlong, session.turns_exhausted = overlong, exhausted
        if told is None:
            await asyncio.sleep(600)
        return self.result(told)

    server, _ = proxy_for("hi")
    async with server as proxy:
        scaffold = scaffolds(run).model_copy(update={"agent_timeout": 6.0 if told is None else None})
        result = await run_trial(spec_for(task_path), proxy, config, scaffold)
    assert (result.outcome, result.rollouts[0].outcome) == (outcome, outcome)


@pytest.mark.parametrize(("segments", "trained"), [("longest", [0]), ("main", [0]), ("all", [0, 1])])
async def test_what_is_trained_of_a_trial_is_the_configs_choice(config, task_path, scaffolds, segments, trained):
    async def run(self, task, sandbox, session):
        await ask(session)
        await ask(session, {"role": "system", "content": "make up a title"}, max_tokens=1)
        return self.result(Outcome.COMPLETED)

    server, _ = proxy_for("hi there")
    async with server as proxy:
        scaffold = scaffolds(run).model_copy(update={"segments": segments})
        result = await run_trial(spec_for(task_path), proxy, config, scaffold)
    assert [rollout.segment for rollout in result.rollouts] == trained
    assert [rollout.num_segments for rollout in result.rollouts] == [2] * len(trained)
    assert (result.turns, result.response_length) == (2, 9 + 1)
    record = result.to_json()
    assert (record["num_segments"], record["trained_segments"], record["turns"]) == (2, len(trained), 2)
    told = trajectory_of(result)
    assert [segment["trained"] for segment in told["segments"]] == [index in trained for index in (0, 1)]
    assert told["scaffold"] == "test" and told["counters"]["segments"] == 2


async def test_limits_of_an_agent_inside_are_the_sessions(config, task_path, monkeypatch):
    """An agent on the host counts its turns itself."""
    limits = []

    async def run(self, task, sandbox, session):
        limits.append((session.max_turns, session.no_tool_limit))
        await ask(session)
        return self.result(Outcome.COMPLETED)

    server, _ = proxy_for("hi")
    async with server as proxy:
        for inside in (True, False):
            scaffold = type("Test", (Scaffold,), {"run": run, "runs_inside": inside})
            monkeypatch.setitem(SCAFFOLDS, "test", scaffold)
            config_of_it = ScaffoldConfig(name="test", max_turns=7, no_tool_limit=3)
            await run_trial(spec_for(task_path), proxy, config, config_of_it)
    assert limits == [(7, 3), (None, 0)]


async def test_a_process_that_outlives_its_session_is_counted(config, task_path, scaffolds, monkeypatch):
    urls = []

    async def run(self, task, sandbox, session):
        await ask(session)
        urls.append(session.base_url)
        return self.result(Outcome.COMPLETED)

    async def take_patch(*args):
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            await http.post(f"{urls[0]}/chat/completions", json={"messages": [{"role": "user", "content": "more"}]})
        return await real(*args)

    real = trial_module.take_patch
    monkeypatch.setattr(trial_module, "take_patch", take_patch)
    server, _ = proxy_for("hi")
    async with server as proxy:
        result = await run_trial(spec_for(task_path), proxy, config, scaffolds(run))
    assert result.counters["revoked_requests"] == 1
    assert (result.counters["turns"], result.turns) == (1, 1)


async def test_the_session_is_revoked_before_the_patch_is_taken(config, task_path, scaffolds, monkeypatch):
    urls, replies = [], []

    async def run(self, task, sandbox, session):
        urls.append(session.base_url)
        return self.result(Outcome.COMPLETED)

    async def take_patch(*args):
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            replies.append(await http.get(f"{urls[0]}/models"))
        return await real(*args)

    real = trial_module.take_patch
    monkeypatch.setattr(trial_module, "take_patch", take_patch)
    server, _ = proxy_for("hi")
    async with server as proxy:
        await run_trial(spec_for(task_path), proxy, config, scaffolds(run))
    assert [reply.status_code for reply in replies] == [401]


@pytest.mark.parametrize("break_it", [lambda path: (path / "task.toml").unlink(), lambda path: path.rename(f"{path}x")])
async def test_a_task_that_cannot_be_read_is_an_infra_error(config, task_path, break_it):
    break_it(task_path)
    server, _ = proxy_for(RIGHT)
    async with server as proxy:
        result = await run_trial(spec_for(task_path), proxy, config, EDIT)
    assert result.outcome is Outcome.INFRA_ERROR and result.error.startswith("TaskError")


@pytest.mark.parametrize("stage", ["start", "upload", "write_files", "read_tree"])
async def test_a_sandbox_that_breaks_at_any_stage_is_an_infra_error_and_is_stopped(
    config, task_path, monkeypatch, stage
):
    backend, stopped = type(create_sandbox(config)), []
    real_stop = backend.stop

    async def broken(self, *args, **options):
        raise SandboxError(f"{stage} broke")

    async def stop(self):
        stopped.append(self)
        await real_stop(self)

    monkeypatch.setattr(backend, stage, broken)
    monkeypatch.setattr(backend, "stop", stop)
    server, _ = proxy_for(RIGHT)
    async with server as proxy:
        result = await run_trial(spec_for(task_path), proxy, config, EDIT)
        assert_clean(config, proxy)
    assert result.outcome is Outcome.INFRA_ERROR and f"{stage} broke" in result.error
    assert result.rollouts == [] and len(stopped) == 1


async def test_a_cancelled_trial_stops_its_generation_its_session_and_its_sandbox(config, task_path):
    server, policy = proxy_for(RIGHT, delay=600)
    async with server as proxy:
        running = asyncio.create_task(run_trial(spec_for(task_path), proxy, config, EDIT))
        await asyncio.wait_for(policy.started.wait(), 60)
        assert list(config.root.rglob("solution.py")), "the sandbox is there while the trial runs"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert policy.running == 0
        assert_clean(config, proxy)


async def test_an_infra_error_is_tried_again_with_a_new_session(config, task_path):
    server, policy = proxy_for(RuntimeError("hiccup"), RuntimeError("again"), RIGHT)
    async with server as proxy:
        result = await run_trial_with_retries(spec_for(task_path), proxy, config, EDIT, budgets=QUICK, attempts=3)
    assert result.outcome is Outcome.COMPLETED and result.spec.attempt == 3
    assert result.rollouts[0].session_id == result.spec.session_id == policy.calls[2].session_id
    assert len({call.session_id for call in policy.calls}) == 3


ASK = """\
import json, sys, urllib.request
body = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
request = urllib.request.Request(sys.argv[1] + "/chat/completions", body, {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request, timeout=30))
open("solution.py", "w").write("# " + answer["choices"][0]["message"]["content"])
"""


async def test_an_agent_that_runs_inside_reaches_its_session_and_is_cut_off_at_the_end(config, task_path, monkeypatch):
    urls = []

    async def run(self, task, sandbox, session):
        urls.append(session.base_url)
        done = await sandbox.exec([sandbox.python, "-c", ASK, session.base_url], timeout=60)
        assert done.exit_code == 0, done.stderr
        return self.result(Outcome.COMPLETED)

    monkeypatch.setitem(SCAFFOLDS, "inside", type("Inside", (Scaffold,), {"run": run, "runs_inside": True}))
    server, _ = proxy_for("hi")
    async with server as proxy:
        result = await run_trial(spec_for(task_path), proxy, config, ScaffoldConfig(name="inside"))
        assert_clean(config, proxy)
    assert (result.outcome, result.error) == (Outcome.COMPLETED, None)
    assert result.patch.files == {"solution.py": b"# hi"}
    assert result.rollouts[0].response_length == 3
    assert urls[0].startswith("http://127.0.0.1:")


async def test_what_is_made_for_a_trial_is_labelled_with_its_session(config, task_path, monkeypatch):
    owners = []

    async def start(self):
        owners.append(current_owner())
        await real(self)

    backend = type(create_sandbox(config))
    real = backend.start
    monkeypatch.setattr(backend, "start", start)
    server, _ = proxy_for(RuntimeError("hiccup"), RIGHT)
    async with server as proxy:
        with owned_by(project="shop", run="exp"):
            result = await run_trial_with_retries(spec_for(task_path), proxy, config, EDIT, budgets=QUICK)
    assert [(o.project, o.run) for o in owners] == [("shop", "exp")] * 2
    assert [o.trial for o in owners] == ["add-0000abcd", result.spec.session_id]


async def test_waiting_is_told_apart_from_working(config, task_path):
    server, _ = proxy_for(RIGHT)
    async with server as proxy:
        result = await run_trial(spec_for(task_path, queue_seconds=12.5), proxy, config, EDIT)
    assert result.to_json()["timings"]["queue"] == 12.5


async def test_retries_end(config, task_path):
    server, policy = proxy_for(RuntimeError("dead"))
    async with server as proxy:
        result = await run_trial_with_retries(spec_for(task_path), proxy, config, EDIT, budgets=QUICK, attempts=2)
    assert result.outcome is Outcome.INFRA_ERROR and len(policy.calls) == 2


async def test_what_the_policy_did_is_not_tried_again(config, task_path):
    server, policy = proxy_for("no code here")
    async with server as proxy:
        result = await run_trial_with_retries(spec_for(task_path), proxy, config, EDIT)
    assert result.outcome is Outcome.MAX_TURNS and len(policy.calls) == 1


async def test_trials_run_side_by_side_with_their_own_tokens(config, task_path):
    server, policy = proxy_for(lambda call: policy.sample(f"```python\n# {call.session_id}\n```\n", call.sampling))
    async with server as proxy:
        specs = [spec_for(task_path, session_id=f"add-{i}") for i in range(6)]
        results = await asyncio.gather(*(run_trial(spec, proxy, config, EDIT) for spec in specs))
        assert_clean(config, proxy)
    for spec, result in zip(specs, results, strict=True):
        assert result.rollouts[0].session_id == spec.session_id
        assert spec.session_id in tokenizer().decode(result.rollouts[0].token_ids)
        assert result.patch.files == {"solution.py": f"# {spec.session_id}\n".encode()}


@pytest.mark.parametrize("task_id", ["add", "owner/repo#12 ü", "x" * 200, "../..", ""])
def test_session_ids_are_new_and_safe_in_paths(task_id):
    first, second = new_session_id(task_id), new_session_id(task_id)
    assert first != second
    slug, _, suffix = first.rpartition("-")
    assert 0 < len(slug) <= 48 and len(suffix) == 8
    assert Path(first).name == first and not first.startswith(".") and first.isascii()


@pytest.mark.parametrize(("asked_first", "outcome"), [(True, Outcome.COMPLETED), (False, Outcome.INFRA_ERROR)])
async def test_who_keeps_breaking_the_proxy_is_graded_with_nothing_done(
    config, task_path, scaffolds, monkeypatch, asked_first, outcome
):
    """Else a request that the proxy fails over would be a way out of bad rewards."""

    async def run(self, task, sandbox, session):
        if asked_first:
            await ask(session)
        broken = {"messages": [{"role": "user", "content": "break"}]}
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            assert (await http.post(f"{session.base_url}/chat/completions", json=broken)).status_code == 500
        await sandbox.write_file("solution.py", FIXED.encode())
        return self.result(Outcome.COMPLETED)

    def encode_prompt(self, messages, *rest):
        if messages[-1]["content"] == "break":
            raise OverflowError("a fault of the proxy")
        return real(self, messages, *rest)

    real = ChatCodec.encode_prompt
    monkeypatch.setattr(ChatCodec, "encode_prompt", encode_prompt)
    server, _ = proxy_for("hi")
    async with server as proxy:
        result = await run_trial_with_retries(
            spec_for(task_path), proxy, config, scaffolds(run), budgets=QUICK, attempts=2
        )
    assert result.outcome is outcome and "a fault of the proxy" in result.error
    assert result.spec.attempt == 2
    if asked_first:
        assert result.patch.empty and [rollout.num_turns for rollout in result.rollouts] == [1]
