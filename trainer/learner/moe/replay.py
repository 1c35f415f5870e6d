"""Routing replay (R3): training goes through the experts that the engine chose, not through those it would choose now.

Two nearly tied experts change places by rounding, and a token computed by another expert has another log-prob: without
replay a mixture of experts is trained off-policy although its weights are the same. Only the choice is forced. The
gates come from the live router, so that it learns too.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int

from trainer.learner.collective import sum_over_ranks
from trainer.learner.moe.mixtures import Mixture, require_mixture
from trainer.learner.moe.records import NOT_RECORDED, is_recorded, row_record

if TYPE_CHECKING:
    from trainer.learner.packing import PackedRow
    from trainer.learner.samples import TrainSample
    from trainer.learner.sequence.parts import RowPart


class ReplayError(ValueError):
    """Routing that cannot be replayed; the message says what to set."""


class RoutingReplay:
    """Hooks on a model's routers, aimed at one row at a time.

    It stays aimed after the forward pass: gradient checkpointing runs the routers again in the backward pass.
    """

    def __init__(self, model: Any) -> None:
        self._mixture: Mixture = require_mixture(model)
        config = model.config.get_text_config()
        routers = self._mixture.routers(model)
        self._layers = [layer for layer, _ in routers]
        self._experts: int = routers[0][1].num_experts
        self._shape = (int(config.num_hidden_layers), int(routers[0][1].top_k))
        self._record: Int[torch.Tensor, "T layers k"] | None = None
        self.forget()
        for layer, router in routers:
            router.register_forward_hook(self._hook(layer))

    def forget(self) -> None:
        """Begin to count anew."""
        self._needed = 0
        self._replayed = 0
        self._changed: int | torch.Tensor = 0

    def counts(self) -> tuple[int, int, int]:
        """Choices since `forget` that the rows needed, that were replayed, and that the router would make otherwise."""
        return self._needed, self._replayed, int(self._changed)

    def aim(self, row: "PackedRow | None", device: Any = "cpu", part: "RowPart | None" = None) -> None:
        """Replay this row's records in the next pass, or nothing: what has no record is routed by the live router.

        With a `part`, the next pass sees that of the row alone.

        Raises:
            ReplayError: the record is of another model.
        """
        record = None if row is None else row_record(row)
        if row is not None and (part is None or part.start == 0):
            # of the ranks that share a row, one counts what it needs
            self._needed += (row.tokens - len(row.samples)) * len(self._layers) if row.samples else 0
        if record is None:
            self._record = None
            return
        if tuple(record.shape[1:]) != self._shape or int(record.max()) >= self._experts:
            raise ReplayError(
                f"routing of {record.shape[1]} layers, {record.shape[2]} experts a token and ids up to "
                f"{int(record.max())} was recorded, but the model has {self._shape[0]} layers and chooses "
                f"{self._shape[1]} of {self._experts}: the engine serves another model than is trained"
            )
        record = record if part is None else part.cut(record, NOT_RECORDED)
        self._replayed += int((record[:, self._layers, 0] >= 0).sum())
        self._record = record.to(device, torch.long)

    def _hook(self, layer: int) -> Any:
        def force(router: Any, _inputs: Any, output: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> Any:
            if self._record is None:
                return None
            logits, gates, chosen = output
            if len(self._record) != len(chosen):
                raise ReplayError(
                    f"a router of layer {layer} sees {len(chosen)} tokens of a row of {len(self._record)}: routing "
                    "cannot be replayed in parts of a sequence; set learner.moe.replay: false"
                )
            record = self._record[:, layer]
            known = record[:, :1] >= 0
            forced = torch.where(known, record, chosen)
            self._changed = self._changed + (forced.sort(-1).values != chosen.sort(-1).values).any(-1).sum()
            return logits, self._mixture.gates(router, logits, forced).to(gates.dtype), forced

        return force


def require_records(samples: "Sequence[TrainSample]") -> None:
    """Raises ReplayError if rollouts are to be trained with replay and not one of them says which experts it used."""
    if samples and not any(s.experts is not None and is_recorded(s.experts).any() for s in samples):
        raise ReplayError(
            f"learner.moe.replay is on, but none of the {len(samples)} rollouts of this batch says which experts its "
            "engine chose; set serving.capture_routing: true, or learner.moe.replay: false to train without replay"
        )


def routing_metrics(replay: RoutingReplay | None) -> dict[str, float]:
    """What an update that began with `forget` reports; nothing without replay. A collective."""
    if replay is None:
        return {}
    needed, replayed, changed = sum_over_ranks(replay.counts())
    return {
        "actor/routing_replay/coverage": replayed / max(needed, 1),
        "actor/routing_replay/changed": changed / max(replayed, 1),
    }
