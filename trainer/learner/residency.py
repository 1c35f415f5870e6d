"""Whether a rank's weights and optimizer are on its device, or wait in host memory while replicas use the device."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from trainer.learner.errors import LearnerError


class Residency:
    """Where the states of a rank's engines are. What needs them asks first, so that an order that is wrong shows."""

    def __init__(self) -> None:
        self.resident = True

    def require(self, what: str) -> None:
        """Raises LearnerError unless the states are on the device."""
        if not self.resident:
            raise LearnerError(f"asked to {what}, but the learner is offloaded; give it its turn first")

    def offload(self, engines: Iterable[Any]) -> None:
        """Move all states to host memory.

        Raises:
            LearnerError: they are there already.
        """
        self.require("offload")
        for engine in engines:
            _offload(engine)
        trim()
        self.resident = False

    def reload(self, engines: Iterable[Any]) -> None:
        """Move all states back.

        Raises:
            LearnerError: they are on the device.
        """
        if self.resident:
            raise LearnerError("asked to reload, but the learner is not offloaded")
        for engine in engines:
            _reload(engine)
        self.resident = True


def _offload(engine: Any) -> None:
    if not _is_trained(engine):
        _move_shards(engine.module.parameters(), torch.device("cpu"))
    else:
        with _frozen_hidden(engine.optimizer):
            engine.offload_states(include=_deepspeeds_part(engine), pin_memory=False)
        _move_shards(_frozen(engine.module), torch.device("cpu"))
        if not _is_fused_adam(engine):
            _move_adam(engine.optimizer, torch.device("cpu"))


def trim() -> None:
    """Give back the GPU memory that torch keeps for later, and which others on the device cannot have meanwhile."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def _reload(engine: Any) -> None:
    if not _is_trained(engine):
        _move_shards(engine.module.parameters(), engine.device)
        return
    _move_shards(_frozen(engine.module), engine.device)
    if not _is_fused_adam(engine):
        _move_adam(engine.optimizer, engine.device)
    engine.reload_states()


def _is_trained(engine: Any) -> bool:
    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload

    return not isinstance(engine.optimizer, DeepSpeedZeRoOffload)


def _is_fused_adam(engine: Any) -> bool:
    return type(engine.optimizer.optimizer).__name__ == "FusedAdam"


def _deepspeeds_part(engine: Any) -> list[Any]:
    """What DeepSpeed moves: everything for its own Adam; for torch's, all but master weights and moments."""
    from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as State

    if _is_fused_adam(engine):
        return list(State)
    return [State.lp_params, State.lp_grads, State.contiguous_grad_buffer]


def _move_adam(zero: Any, device: torch.device) -> None:
    """Master weights and moments, unless they are kept in host memory for good."""
    if zero.offload_optimizer:
        return
    for master in zero.fp32_partitioned_groups_flat:
        master.data = master.data.to(device)
    for state in zero.optimizer.state.values():
        for moment in ("exp_avg", "exp_avg_sq"):
            if moment in state:
                state[moment].data = state[moment].data.to(device)


@contextmanager
def _frozen_hidden(zero: Any) -> Iterator[None]:
    """DeepSpeed lays all parameters of a module into the buffer of those that it trains: let it see no others."""
    module = zero.module
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    zero.module = SimpleNamespace(parameters=lambda: iter(trained))
    try:
        yield
    finally:
        zero.module = module


def _frozen(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Parameters that DeepSpeed's optimizer does not know: the base of adapters, and what `learner.freeze` names."""
    return [parameter for parameter in module.parameters() if not parameter.requires_grad]


def _move_shards(parameters: Iterable[torch.nn.Parameter], device: torch.device) -> None:
    """The shards of parameters that are not trained."""
    for parameter in parameters:
        shard = getattr(parameter, "ds_tensor", None)
        if shard is not None:
            shard.data = shard.data.to(device)
