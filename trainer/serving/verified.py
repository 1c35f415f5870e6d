"""A replica's end of a sync, whatever the transport: what arrives is noted, and at the end proven to be what is served.

Mixed into vLLM's weight-transfer engines. They hand tensors to the model's `load_weights`; a tap there sees each of
them, checks and remembers it, and lets it through.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from trainer.serving.buckets import Manifest, TensorRecord, WeightSyncError, digest, manifest, type_name
from trainer.serving.checksum import lazy_checksum, to_text
from trainer.serving.experts import pack_reloaded_experts
from trainer.serving.names import expected_names, probe, stale_parameters


class Verified:
    """Mixin for a `WeightTransferEngine`, before it in the order of bases."""

    model: Any
    model_config: Any
    parallel_config: Any
    device: Any

    def init_transfer_engine(self, init_info: Any) -> None:
        super().init_transfer_engine(init_info)  # type: ignore[misc]
        self._expected = expected_names(self.model)
        self._syncs = 0

    def start_weight_update(self) -> None:
        self._syncs += 1
        self._arrived: dict[str, tuple[torch.dtype, tuple[int, ...], torch.Tensor | str]] = {}
        self._probes: dict[str, torch.Tensor] = {}
        self._verdict: Manifest | WeightSyncError = WeightSyncError("the sync was not finished")
        super().start_weight_update()  # type: ignore[misc]

    def receive_weights(self, update_info: Any) -> None:
        try:
            with self._tapped() as tap:
                super().receive_weights(update_info)  # type: ignore[misc]
            if tap.failure is not None:
                raise tap.failure
        except Exception:
            self.abandon()
            raise

    def finish_weight_update(self) -> None:
        super().finish_weight_update()  # type: ignore[misc]
        pack_reloaded_experts(self.model)
        # vLLM's worker stays locked in an update whose end raises: the verdict is kept until it is asked for
        self._verdict = self._problem() or manifest(self._received())
        self._probes.clear()
        self._arrived.clear()

    def abandon(self) -> None:
        """Leave no half-loaded layer behind: the next sync would count its tensors twice."""
        for layer in self.model.modules():
            # or vLLM would make whole layers of what has come, for which memory may be what was missing
            info = get_layerwise_info(layer)
            info.loaded_weights.clear()
            info.load_numel = 0
        finalize_layerwise_reload(self.model, self.model_config)

    def verified_fingerprint(self, sent: Manifest) -> str:
        """Digest of the weights that the last sync brought, which are those `sent`.

        Raises:
            WeightSyncError: they are not, or not what the engine now computes with, or not all of its weights.
        """
        if isinstance(self._verdict, WeightSyncError):
            raise self._verdict
        for name in sorted(sent.keys() | self._verdict.keys()):
            if sent.get(name) != self._verdict.get(name):
                raise WeightSyncError(
                    f"{name}: the learner sent {sent.get(name, 'nothing')}, "
                    f"the replica received {self._verdict.get(name, 'nothing')}"
                )
        return digest(self._verdict)

    @contextmanager
    def _tapped(self) -> "Iterator[_Tap]":
        model = self.model
        self.model = tap = _Tap(model, self._note, self._load)
        try:
            yield tap
        finally:
            self.model = model

    def _load(self, model: Any, weights: list[tuple[str, torch.Tensor]]) -> Any:
        """Load tensors that were checked into the engine's model."""
        return model.load_weights(weights)

    def _note(self, name: str, tensor: torch.Tensor) -> None:
        if name in self._arrived:
            raise WeightSyncError(f"{name} was sent twice in one sync")
        self._arrived[name] = (tensor.dtype, tuple(tensor.shape), self._checksum(name, tensor))
        self._probes[name] = probe(tensor, self._syncs).to(self.device, self.model_config.dtype)

    def _checksum(self, name: str, tensor: torch.Tensor) -> torch.Tensor | str:
        """Left on the device until all have arrived: waiting for each would cost more than the transfer."""
        return lazy_checksum(tensor)

    def _received(self) -> list[TensorRecord]:
        return [
            TensorRecord(name, type_name(dtype), shape, found if isinstance(found, str) else to_text(found))
            for name, (dtype, shape, found) in self._arrived.items()
        ]

    def _problem(self) -> WeightSyncError | None:
        missing = sorted(self._expected - self._arrived.keys())
        unknown = sorted(self._arrived.keys() - self._expected)
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


class _Tap:
    """A model, as far as a transfer engine needs one."""

    failure: Exception | None = None
    """What went wrong first. It is kept until the transfer is through: a sender over NCCL waits for whom leaves it."""

    def __init__(self, model: Any, note: Any, load: Any) -> None:
        self._model, self._note, self._load = model, note, load

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        if self.failure is not None:
            return None
        try:
            weights = list(weights)
            # all of a portion are checked before the first one is loaded
            for name, tensor in weights:
                self._note(name, tensor)
            return self._load(self._model, weights)
        except Exception as failure:
            self.failure = failure
            return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
