"""The replica's end of a weight sync: a backend of vLLM's weight-transfer layer that reads from shared memory.

Importing this module registers the backend; vLLM's worker imports it as its extension class.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from trainer.serving.buckets import TensorRecord, WeightSyncError, fingerprint, read_bucket
from trainer.serving.names import expected_names, probe, stale_parameters

BACKEND = "testgrad_shm"


@dataclass
class ShmInit(WeightTransferInitInfo):
    """Nothing has to be set up: buckets name the memory they lie in."""


@dataclass
class ShmBucket(WeightTransferUpdateInfo):
    """One bucket: where it lies and which tensors it holds."""

    path: str
    size: int
    records: list[dict[str, Any]] = field(default_factory=list)


class ShmWeightTransferEngine(WeightTransferEngine[ShmInit, ShmBucket]):
    """Loads buckets into the model and proves at the end that the engine computes with what was sent."""

    init_info_cls = ShmInit
    update_info_cls = ShmBucket

    def init_transfer_engine(self, init_info: ShmInit) -> None:
        self._expected = expected_names(self.model)
        self._syncs = 0

    def start_weight_update(self) -> None:
        self._syncs += 1
        self._received: dict[str, TensorRecord] = {}
        self._probes: dict[str, torch.Tensor] = {}
        self._verdict: str | WeightSyncError = WeightSyncError("the sync was not finished")
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: ShmBucket) -> None:
        try:
            self.model.load_weights(list(self._read(update_info)))
        except Exception:
            # leave no half-loaded layer behind: the next sync would count its tensors twice
            finalize_layerwise_reload(self.model, self.model_config)
            raise

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        # vLLM's worker stays locked in an update whose end raises: the verdict is kept until verified_fingerprint asks
        self._verdict = self._problem() or fingerprint(self._received.values())
        self._probes.clear()

    def verified_fingerprint(self) -> str:
        """Digest of the weights that the last sync brought.

        Raises:
            WeightSyncError: they are not what the engine now computes with, or not all of its weights.
        """
        if isinstance(self._verdict, WeightSyncError):
            raise self._verdict
        return self._verdict

    def _read(self, bucket: ShmBucket) -> Iterator[tuple[str, torch.Tensor]]:
        for record, tensor in read_bucket(bucket.path, bucket.size, bucket.records):
            if record.name in self._received:
                raise WeightSyncError(f"{record.name} was sent twice in one sync")
            self._received[record.name] = record
            tensor = tensor.to(self.device, self.model_config.dtype)
            self._probes[record.name] = probe(tensor, self._syncs)
            yield record.name, tensor

    def _problem(self) -> WeightSyncError | None:
        missing = sorted(self._expected - self._received.keys())
        unknown = sorted(self._received.keys() - self._expected)
        if missing or unknown:
            return WeightSyncError(
                f"names sent differ from the engine's: missing {missing[:5]} ({len(missing)} in all), "
                f"unknown {unknown[:5]} ({len(unknown)} in all); a tied tensor must be sent under both names"
            )
        # with tensor parallelism a module holds a slice: names and checksums are checked, columns are not
        if self.parallel_config.tensor_parallel_size > 1:
            return None
        stale = stale_parameters(self.model, self._probes, self._syncs)
        if stale:
            return WeightSyncError(
                f"the engine computes with other values than were sent: {stale[:5]} ({len(stale)} in all)"
            )
        return None

    def shutdown(self) -> None:
        pass


class ShmWorkerExtension:
    """Methods that vLLM mixes into its worker, for `collective_rpc`."""

    def verified_fingerprint(self) -> str:
        """See `ShmWeightTransferEngine.verified_fingerprint`."""
        return self.weight_transfer_engine.verified_fingerprint()  # type: ignore[attr-defined]


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, ShmWeightTransferEngine)
