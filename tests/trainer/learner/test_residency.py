"""Parameters that are not trained leave the device, and come back, beside those that are."""

from types import SimpleNamespace

import pytest
import torch

from trainer.learner import residency
from trainer.learner.errors import LearnerError
from trainer.learner.residency import Residency


@pytest.fixture
def engine():
    """What of a ZeRO-3 engine is asked; it notes which parameters DeepSpeed saw."""
    module = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False) for _ in range(3)])
    module[1].requires_grad_(False)
    adam = SimpleNamespace(state={})
    zero = SimpleNamespace(module=module, optimizer=adam, offload_optimizer=False, fp32_partitioned_groups_flat=[])
    engine = SimpleNamespace(module=module, optimizer=zero, device=torch.device("cpu"), seen=[])
    engine.offload_states = lambda include, pin_memory: engine.seen.extend(zero.module.parameters())
    engine.reload_states = lambda: None
    return engine


def test_frozen_parameters_move_by_themselves(engine, monkeypatch):
    moved = []
    monkeypatch.setattr(residency, "_move_shards", lambda parameters, device: moved.append(list(parameters)))
    trained, frozen = [engine.module[0].weight, engine.module[2].weight], engine.module[1].weight
    here = Residency()
    here.offload([engine])
    assert [id(p) for p in engine.seen] == [id(p) for p in trained], "DeepSpeed's buffer has no room for others"
    assert engine.optimizer.module is engine.module
    with pytest.raises(LearnerError, match="the learner is offloaded"):
        here.require("update")
    here.reload([engine])
    assert [[id(p) for p in parameters] for parameters in moved] == [[id(frozen)]] * 2
