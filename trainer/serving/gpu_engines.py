"""vLLM's own weight-transfer engines for GPUs, with proof of what arrived."""

import pickle
from typing import Any

from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine, IPCWeightTransferUpdateInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

from trainer.serving.transports import HANDLES
from trainer.serving.verified import Verified


class VerifiedIpc(Verified, IPCWeightTransferEngine):
    """From a learner's rank on the same GPU."""

    def parse_update_info(self, update_dict: dict[str, Any]) -> IPCWeightTransferUpdateInfo:
        """Handles come from the learner as bytes: see `SyncClient.update_weights`."""
        info: IPCWeightTransferUpdateInfo = super().parse_update_info(
            update_dict | {HANDLES: pickle.loads(update_dict[HANDLES])}
        )
        return info

    def abandon(self) -> None:
        try:
            super().abandon()
        finally:
            # or the learner's buffer would stay on the GPU
            self._packed_importer.close()


class VerifiedNccl(Verified, NCCLWeightTransferEngine):
    """By broadcast from the learner's rank 0."""
