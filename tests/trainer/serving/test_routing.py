"""Capture of routing: refused where no engine tells it, and never taken for what it is not."""

import asyncio
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from trainer.rollout import Sampling
from trainer.serving.config import ServingConfig
from trainer.serving.errors import ReplicaError
from trainer.serving.pool import ReplicaPool
from trainer.serving.replica import Replica
from trainer.serving.routing import read_routing


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_records_keep_their_values_in_the_seam_s_type(kind):
    experts = np.arange(3 * 2 * 2, dtype=kind).reshape(3, 2, 2) + np.array(243, dtype=kind)
    routing = read_routing(experts[::-1][::-1], 3)
    assert routing.shape == (3, 2, 2)
    assert np.array_equal(np.frombuffer(routing.data, "<i2").reshape(3, 2, 2), experts)


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (None, "told no experts; is the policy a mixture of experts"),
        (np.zeros((2, 2, 2), "uint8"), r"shape \(2, 2, 2\) for 3 positions"),
        (np.zeros((3, 2), "uint8"), r"shape \(3, 2\) for 3 positions"),
    ],
)
def test_a_record_that_does_not_cover_the_answer_is_refused(experts, message):
    with pytest.raises(ReplicaError, match=message):
        read_routing(experts, 3)


async def test_cpus_are_refused_before_anything_starts(tmp_path):
    with pytest.raises(ReplicaError, match=r"capture_routing needs a GPU.*capture_routing: false and learner.moe"):
        await ReplicaPool.start("run", tmp_path, ServingConfig(capture_routing=True))


def test_an_answer_carries_its_record_if_it_is_captured(monkeypatch):
    vllm, params = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    vllm.SamplingParams = SimpleNamespace
    params.RequestOutputKind = SimpleNamespace(FINAL_ONLY="final")
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", params)
    answer = SimpleNamespace(
        token_ids=[5, 6],
        logprobs=[{5: SimpleNamespace(logprob=-0.5)}, {6: SimpleNamespace(logprob=-1.0)}],
        weight_versions=[SimpleNamespace(start=0, end=2, version="0")],
        finish_reason="stop",
        routed_experts=np.ones((4, 2, 1), "uint8"),
    )

    class Engine:
        async def generate(self, prompt, params, request_id):
            yield SimpleNamespace(finished=True, outputs=[answer])

    replica = Replica(None)
    replica._engine = Engine()
    assert asyncio.run(replica.generate([1, 2, 3], Sampling(), "r")).routed_experts is None
    replica._captures = True
    assert asyncio.run(replica.generate([1, 2, 3], Sampling(), "r")).routed_experts.shape == (4, 2, 1)
    with pytest.raises(ReplicaError, match="for 3 positions"):
        asyncio.run(replica.generate([1, 2], Sampling(), "r"))
