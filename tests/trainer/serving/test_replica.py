"""What a replica refuses: to serve without trusted weights, and to hand on an answer with gaps."""

import asyncio
import sys
from types import ModuleType, SimpleNamespace

import pytest

from trainer.rollout import RolloutError, Sampling
from trainer.serving.config import ServingConfig
from trainer.serving.errors import PhaseError, ReplicaLeaving
from trainer.serving.replica import Replica, ReplicaError, _spread


def span(start, end, version):
    return SimpleNamespace(start=start, end=end, version=version)


def test_spread_of_one_version():
    assert _spread([span(0, 3, "4")], 3) == [4, 4, 4]


def test_spread_over_a_sync_in_the_middle():
    assert _spread([span(0, 2, "4"), span(2, 3, "5")], 3) == [4, 4, 5]


@pytest.mark.parametrize("spans", [None, [], [span(1, 2, "4")]])
def test_tokens_without_a_span_have_no_version(spans):
    versions = _spread(spans, 2)
    assert versions[0] == -1


class Engine:
    """Answers every request alike, and notes what it is told."""

    def __init__(self, **answer):
        self.answer = SimpleNamespace(
            **{
                "token_ids": [5, 6],
                "logprobs": [{5: SimpleNamespace(logprob=-0.5)}, {6: SimpleNamespace(logprob=-1.0)}],
                "weight_versions": [span(0, 2, "0")],
                "finish_reason": "stop",
            }
            | answer
        )
        self.version, self.finished, self.told, self.params = "0", True, [], None

    async def generate(self, prompt, params, request_id):
        self.params, self.prompt = params, prompt
        yield SimpleNamespace(finished=self.finished, outputs=[self.answer])

    async def get_weight_version(self):
        return self.version

    async def update_weight_version(self, version):
        self.told.append(f"version {version}")
        self.version = version

    async def collective_rpc(self, method, args=()):
        self.told.append(method)
        return {"verified_fingerprint": ["f00"], "memory_used": [7, 9]}.get(method)

    def __getattr__(self, name):
        async def note(*args, **kwargs):
            self.told.append(name)

        return note


@pytest.fixture
def make_replica(monkeypatch):
    """A replica whose engine is a fake; vLLM itself runs in tests/integration."""
    vllm, params = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    vllm.SamplingParams = SimpleNamespace
    params.RequestOutputKind = SimpleNamespace(FINAL_ONLY="final")
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", params)

    def make(**answer):
        replica = Replica(None)
        replica._engine = Engine(**answer)
        return replica

    return make


def slow(replica):
    """The engine answers once the event is set that this returns."""
    go_on, answer = asyncio.Event(), replica._engine.answer

    async def slowly(prompt, params, request_id):
        await go_on.wait()
        yield SimpleNamespace(finished=True, outputs=[answer])

    replica._engine.generate = slowly
    return go_on


async def generate(replica):
    return await replica.generate([1, 2], Sampling(0.7, 1.0, 9, stop=("END",)), "request-1")


async def test_an_answer_carries_what_the_engine_sampled(make_replica):
    replica = make_replica()
    answer = await generate(replica)
    assert (answer.token_ids, answer.logprobs, answer.weight_versions) == ([5, 6], [-0.5, -1.0], [0, 0])
    params = replica._engine.params
    assert (params.temperature, params.max_tokens, params.stop, params.logprobs) == (0.7, 9, ["END"], 0)


async def test_a_log_prob_above_zero_by_rounding_is_zero(make_replica):
    answer = await generate(make_replica(logprobs=[{i: SimpleNamespace(logprob=1e-7)} for i in (5, 6)]))
    assert answer.logprobs == [0.0, 0.0]


async def test_a_missing_log_prob_is_never_zero(make_replica):
    with pytest.raises(KeyError):
        await generate(make_replica(logprobs=[{5: SimpleNamespace(logprob=-0.5)}, {7: SimpleNamespace(logprob=-1.0)}]))


@pytest.mark.parametrize("logprobs", [None, [{5: SimpleNamespace(logprob=-0.5)}]])
async def test_log_probs_of_fewer_tokens_are_refused(make_replica, logprobs):
    with pytest.raises(ReplicaError, match="request-1: 2 tokens, but log-probs of"):
        await generate(make_replica(logprobs=logprobs))


async def test_a_token_without_weight_version_is_refused(make_replica):
    with pytest.raises(RolloutError, match="weight version -1"):
        await generate(make_replica(weight_versions=[span(0, 1, "0")]))


async def test_an_unfinished_answer_is_refused(make_replica):
    replica = make_replica()
    replica._engine.finished = False
    with pytest.raises(ReplicaError, match="ended the request without an answer"):
        await generate(replica)


@pytest.mark.parametrize(
    ("reason", "told"), [("stop", "stop"), ("length", "length"), ("abort", "abort"), (None, "abort")]
)
async def test_finish_reasons(make_replica, reason, told):
    assert (await generate(make_replica(finish_reason=reason))).finish_reason == told


async def test_nothing_is_served_during_a_sync(make_replica):
    replica = make_replica()
    await replica.start_sync()
    assert await replica.version() is None
    with pytest.raises(ReplicaError, match="sync again before sampling"):
        await generate(replica)
    assert await replica.finish_sync(1, {}) == "f00"
    assert await replica.version() == 1
    await generate(replica)


async def test_weights_are_verified_before_requests_go_on_and_old_prefixes_are_dropped(make_replica):
    replica = make_replica()
    await replica.start_sync()
    await replica.finish_sync(1, {})
    assert replica._engine.told == [
        "pause_generation", "start_weight_update", "finish_weight_update", "verified_fingerprint", "version 1",
        "reset_prefix_cache", "resume_generation",
    ]  # fmt: skip


async def test_after_a_sync_that_fails_its_check_nothing_is_served(make_replica):
    replica = make_replica()
    await replica.start_sync()

    async def differ(method, args=()):
        return ["f00", "f01"]

    replica._engine.collective_rpc = differ
    with pytest.raises(ReplicaError, match="different weights"):
        await replica.finish_sync(1, {})
    assert await replica.version() is None
    assert "resume_generation" not in replica._engine.told
    with pytest.raises(ReplicaError, match="did not complete"):
        await generate(replica)


async def test_a_request_that_comes_during_a_sync_waits_for_its_end(make_replica):
    replica = make_replica()
    replica._patience = 60.0
    await replica.start_sync()
    waiting = asyncio.create_task(generate(replica))
    await asyncio.sleep(0.01)
    assert not waiting.done() and replica._engine.params is None
    await replica.finish_sync(1, {})
    assert (await waiting).token_ids == [5, 6]


async def test_a_request_waits_for_no_sync_that_has_failed(make_replica):
    replica = make_replica()
    replica._patience = 60.0
    await replica.start_sync()
    waiting = asyncio.create_task(generate(replica))
    await asyncio.sleep(0)
    replica._engine.collective_rpc = None  # its check cannot even be made
    with pytest.raises(TypeError):
        await replica.finish_sync(1, {})
    with pytest.raises(PhaseError, match="sync again before sampling"):
        await waiting
    with pytest.raises(PhaseError, match="sync again before sampling"):
        await asyncio.wait_for(generate(replica), 1)


async def test_kept_kv_is_used_by_those_who_have_it_and_by_no_later_request(make_replica):
    replica = make_replica()
    replica._keeps_kv = True
    pauses = []

    async def pause(mode, clear_cache):
        pauses.append((mode, clear_cache))

    replica._engine.pause_generation = pause
    salts = []
    for version in (1, 2):
        await replica.start_sync()
        await replica.finish_sync(version, {})
        await generate(replica)
        salts.append(replica._engine.prompt["cache_salt"])
    assert pauses == [("keep", False)] * 2 and "reset_prefix_cache" not in replica._engine.told
    assert len(set(salts)) == 2
    recomputing = make_replica()
    recomputing._engine.pause_generation = pause
    await recomputing.start_sync()
    await recomputing.finish_sync(1, {})
    await generate(recomputing)
    assert pauses[-1] == ("keep", True) and "cache_salt" not in recomputing._engine.prompt


async def test_requests_that_a_sync_froze_are_counted(make_replica):
    replica = make_replica()
    go_on = slow(replica)
    running = asyncio.create_task(generate(replica))
    await asyncio.sleep(0)
    await replica.start_sync()
    await replica.finish_sync(1, {})
    assert await replica.frozen() == 1
    go_on.set()
    assert (await running).token_ids == [5, 6]


async def test_an_engine_that_says_another_version_is_not_believed(make_replica):
    replica = make_replica()
    replica._engine.version = "3"
    with pytest.raises(ReplicaError, match="the engine says version 3, the replica 0"):
        await replica.version()


async def test_a_sync_whose_sender_died_is_abandoned_when_the_next_begins(make_replica):
    replica = make_replica()
    await replica.start_sync()
    assert await replica.version() is None
    await replica.start_sync()
    assert replica._engine.told == [
        "pause_generation", "start_weight_update",
        "abandon_update", "pause_generation", "start_weight_update",
    ]  # fmt: skip
    await replica.finish_sync(1, {})
    assert await replica.version() == 1


async def test_weights_outside_of_a_sync_are_refused(make_replica):
    replica = make_replica()
    with pytest.raises(PhaseError, match="outside of a sync"):
        await replica.receive_bucket({})
    with pytest.raises(PhaseError, match="outside of a sync"):
        await replica.finish_sync(1, {})
    assert replica._engine.told == []


async def test_a_replica_sleeps_wakes_for_a_sync_and_serves_when_its_cache_is_back(make_replica):
    replica = make_replica()
    assert await replica.sleep() == 9
    with pytest.raises(PhaseError, match="is asleep; wake it before sampling"):
        await generate(replica)
    with pytest.raises(PhaseError, match="wake its weights first"):
        await replica.start_sync()
    await replica.wake_weights()
    await replica.start_sync()
    await replica.finish_sync(1, {})
    assert "resume_generation" not in replica._engine.told, "there is no KV cache yet"
    with pytest.raises(PhaseError, match="wake it before sampling"):
        await generate(replica)
    await replica.wake_cache()
    assert (await generate(replica)).token_ids == [5, 6]
    assert [call for call in replica._engine.told if call in ("sleep", "wake_up")] == ["sleep", "wake_up", "wake_up"]


async def test_a_replica_does_not_fall_asleep_over_a_request(make_replica):
    replica = make_replica()
    go_on = slow(replica)
    running = asyncio.create_task(generate(replica))
    await asyncio.sleep(0)
    with pytest.raises(PhaseError, match="with 1 requests running"):
        await replica.sleep()
    assert "sleep" not in replica._engine.told
    go_on.set()
    await running
    await replica.sleep()


async def test_requests_of_a_flow_that_was_killed_keep_no_replica_awake(make_replica):
    replica = make_replica()
    go_on, aborted = slow(replica), []

    async def abort(requests):
        aborted.extend(requests)
        go_on.set()

    replica._engine.abort = abort
    running = asyncio.create_task(generate(replica))
    await asyncio.sleep(0)
    assert await replica.drop_requests() == 1 and aborted == ["request-1"]
    await replica.sleep()
    await running


async def test_one_that_leaves_finishes_its_turns_and_refuses_all_others(make_replica):
    replica = make_replica()
    go_on = slow(replica)
    turn = asyncio.create_task(generate(replica))
    await asyncio.sleep(0)
    assert await replica.leave() == 1 and await replica.leave() == 1
    with pytest.raises(ReplicaLeaving, match="takes no new turns"):
        await generate(replica)
    standing = await replica.standing()
    assert (standing.turns, standing.serves, standing.may_end) == (1, False, False)
    go_on.set()
    assert (await turn).token_ids == [5, 6]
    assert (await replica.standing()).may_end


async def test_a_turn_that_waits_for_a_sync_is_under_way(make_replica):
    """It is answered before the replica ends, which it does in no sync."""
    replica = make_replica()
    replica._patience = 5.0
    await replica.start_sync()
    turn = asyncio.create_task(generate(replica))
    await asyncio.sleep(0)
    assert await replica.leave() == 1
    assert not (await replica.standing()).may_end
    await replica.finish_sync(1, {})
    await turn
    assert (await replica.standing()).may_end


async def test_where_it_stands_is_told_once_its_boot_has_ended(make_replica, monkeypatch):
    replica, boots = make_replica(), asyncio.Event()

    async def boot(self, *arguments):
        await boots.wait()
        raise ReplicaError("out of memory")

    monkeypatch.setattr(Replica, "_boot", boot)
    assert not (await replica.standing()).up
    booting = asyncio.create_task(replica.boot("/model", ServingConfig(), "extension", "shared_memory", False))
    await asyncio.sleep(0)
    asked = asyncio.create_task(replica.standing())
    await asyncio.sleep(0.01)
    assert not asked.done()
    boots.set()
    with pytest.raises(ReplicaError, match="out of memory"):
        await booting
    assert not (await asked).up and not (await asked).serves


async def test_the_engine_of_one_that_leaves_is_not_asked_for_a_token(make_replica):
    replica = make_replica()
    replica._booted = "boot"
    await replica.leave()
    assert await replica.booted() == "boot" and replica._engine.told == ["memory_used"]
