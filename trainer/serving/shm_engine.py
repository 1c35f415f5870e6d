"""A backend of vLLM's weight-transfer layer that reads from shared memory, for CPUs and for one machine."""

from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from trainer.serving.buckets import SharedReader, WeightSyncError, parse_records
from trainer.serving.landing import Landings
from trainer.serving.verified import Verified


@dataclass
class ShmInit(WeightTransferInitInfo):
    """Nothing has to be set up: buckets name the memory they lie in."""


@dataclass
class ShmBucket(WeightTransferUpdateInfo):
    """One portion: where it lies and which tensors it holds."""

    path: str
    size: int
    records: list[dict[str, Any]] = field(default_factory=list)


class ShmTransferEngine(WeightTransferEngine[ShmInit, ShmBucket]):
    """Loads tensors from where they lie in the learner's buffer."""

    init_info_cls = ShmInit
    update_info_cls = ShmBucket

    def init_transfer_engine(self, init_info: ShmInit) -> None:
        self._reader: tuple[str, SharedReader] | None = None
        self._layers = list(self.model.modules())

    def start_weight_update(self) -> None:
        # a buffer of an earlier sync that failed may have had the path of the next one
        self._reader = None
        self._begin()

    def receive_weights(self, update_info: ShmBucket) -> None:
        reader, records = self._reader_of(update_info), parse_records(update_info.records)
        self._checksums = {record.name: record.checksum for record in records}
        self.model.load_weights(reader.read_all(records))
        self._keep_what_waits(reader)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        self._reader = None

    def _begin(self) -> None:
        initialize_layerwise_reload(self.model)

    def _reader_of(self, bucket: ShmBucket) -> SharedReader:
        """The buffer is mapped once a sync: pages that are mapped anew have to be found again, one by one."""
        if self._reader is None or self._reader[0] != bucket.path:
            self._reader = bucket.path, SharedReader(bucket.path, bucket.size)
        return self._reader[1]

    def _keep_what_waits(self, reader: SharedReader) -> None:
        """Copy tensors that vLLM holds until the rest of their layer arrives: the learner will reuse the memory."""
        for layer in self._layers:
            for _, call in get_layerwise_info(layer).loaded_weights:
                for name, value in call.arguments.items():
                    if isinstance(value, torch.Tensor) and reader.holds(value):
                        call.arguments[name] = value.clone()

    def shutdown(self) -> None:
        self._reader = None


class VerifiedShm(Verified, ShmTransferEngine):
    """With proof, and in place once a whole sync has shown where everything belongs; by vLLM's reload until then."""

    def init_transfer_engine(self, init_info: ShmInit) -> None:
        super().init_transfer_engine(init_info)
        self._landings: Landings | None = None

    def finish_weight_update(self) -> None:
        in_place, self._landings = self._landings, None
        received, reader = self._received(), self._reader
        super().finish_weight_update()
        # the ring is written again while requests still run: what lay in it would change under them
        lent = [name for name, p in self.model.named_parameters() if reader is not None and reader[1].holds(p)]
        if lent and not isinstance(self._verdict, WeightSyncError):
            self._verdict = WeightSyncError(f"the engine computes with memory of the learner's: {lent[:5]}")
        if not isinstance(self._verdict, WeightSyncError):
            self._landings = in_place or Landings.learn(self.model, self.vllm_config, received)

    def abandon(self) -> None:
        super().abandon()
        # a layer that waits for more of its tensors would take the next sync's for them
        self._landings = self._reader = None

    def _begin(self) -> None:
        if self._landings is None:
            super()._begin()

    def _load(self, model: Any, weights: list[tuple[str, torch.Tensor]]) -> Any:
        if self._landings is None:
            return super()._load(model, weights)
        return self._landings.land(weights)

    def _keep_what_waits(self, reader: SharedReader) -> None:
        # what was put in place is not held by vLLM
        if self._landings is None:
            super()._keep_what_waits(reader)

    def _checksum(self, name: str, tensor: torch.Tensor) -> str:
        """It was compared when the tensor was read, and need not be computed again."""
        return self._checksums[name]
