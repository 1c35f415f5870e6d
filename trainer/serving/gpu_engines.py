"""vLLM's own weight-transfer engines for GPUs, with proof of what arrived."""

from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

from trainer.serving.verified import Verified


class VerifiedIpc(Verified, IPCWeightTransferEngine):
    """From a learner's rank on the same GPU."""


class VerifiedNccl(Verified, NCCLWeightTransferEngine):
    """By broadcast from the learner's rank 0."""
