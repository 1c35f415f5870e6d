"""What we add to vLLM's workers. A worker imports this module as its extension class, which registers our engines."""

from pathlib import Path
from typing import Any

from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from trainer.serving.adapters import verified_adapters
from trainer.serving.buckets import Manifest
from trainer.serving.memory import memory_used

ENGINES = {
    "testgrad_shm": ("trainer.serving.shm_engine", "VerifiedShm"),
    "testgrad_ipc": ("trainer.serving.gpu_engines", "VerifiedIpc"),
    "testgrad_nccl": ("trainer.serving.gpu_engines", "VerifiedNccl"),
}
"""By the name that vLLM's `weight_transfer_config` calls them by; imported when one is used."""


class WorkerExtension:
    """Methods that vLLM mixes into its worker, for `collective_rpc`."""

    weight_transfer_engine: Any
    vllm_config: Any
    model_runner: Any
    _weight_update_active: bool

    def verified_fingerprint(self, sent: Manifest) -> str:
        """See `Verified.verified_fingerprint`."""
        return str(self.weight_transfer_engine.verified_fingerprint(sent))

    def verified_adapters(self, folder: str) -> str:
        """See `adapters.verified_adapters`."""
        manager = self.model_runner.lora_manager._adapter_manager
        return verified_adapters(manager, Path(folder), self.vllm_config.parallel_config.tensor_parallel_size == 1)

    def abandon_update(self) -> None:
        """End a sync whose sender is gone, so that another can begin. The weights are then a mixture."""
        if not self._weight_update_active:
            return
        with set_current_vllm_config(self.vllm_config):
            self.weight_transfer_engine.abandon()
        self.weight_transfer_engine.reset_weight_update_target()
        self._weight_update_active = False

    def memory_used(self) -> int:
        """Bytes of the device that are in use, by whomever; on a CPU, those of this process."""
        return memory_used()


for _name, (_module, _class) in ENGINES.items():
    if _name not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(_name, _module, _class)
