"""The families of mixtures of experts whose routing can be replayed and whose experts can be synced and exported.

transformers computes with all experts of a layer fused into two three-dimensional parameters, whatever the family;
checkpoints, and the engines that load them, know each expert's matrices by a name of their own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


class MixtureError(ValueError):
    """The model is no mixture of experts that is known here."""


@dataclass(frozen=True)
class Mixture:
    """What differs between families whose routers return (logits, gates, chosen experts) for each token."""

    router: str
    """Name of the class of its routers."""
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    """Names of an expert's three matrices in checkpoints."""
    block: str = "mlp"
    """Name in checkpoints of what transformers calls `mlp`."""
    always_normalised: bool = False
    """Whether the gates of the chosen experts always add up to 1; else the router's `norm_topk_prob` says."""

    def routers(self, model: torch.nn.Module) -> list[tuple[int, Any]]:
        """The number of each layer that has experts, and its router."""
        return [
            (_layer(name), module) for name, module in model.named_modules() if type(module).__name__ == self.router
        ]

    def gates(
        self, router: Any, logits: Float[torch.Tensor, "T experts"], chosen: Int[torch.Tensor, "T k"]
    ) -> Float[torch.Tensor, "T k"]:
        """The weights of the chosen experts, by the live router: its gradient is the one of a choice of its own."""
        gates = torch.softmax(logits, -1, dtype=torch.float32).gather(-1, chosen)
        if self.always_normalised or router.norm_topk_prob:
            gates = gates / gates.sum(-1, keepdim=True)
        return gates

    def unfused(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """A parameter of transformers' under the names, and in the pieces, that a checkpoint has."""
        stem, _, leaf = name.rpartition(".")
        stem = stem.replace(".mlp", f".{self.block}")
        if not stem.endswith(".experts"):
            yield f"{stem}.{leaf}", tensor
            return
        for expert, weight in enumerate(tensor):
            if leaf == "gate_up_proj":
                gate, up = weight.chunk(2)
                yield f"{stem}.{expert}.{self.gate}.weight", gate
                yield f"{stem}.{expert}.{self.up}.weight", up
            else:
                yield f"{stem}.{expert}.{self.down}.weight", weight


MIXTURES: dict[str, Mixture] = {
    "qwen2_moe": Mixture(router="Qwen2MoeTopKRouter"),
    "qwen3_moe": Mixture(router="Qwen3MoeTopKRouter"),
    "olmoe": Mixture(router="OlmoeTopKRouter"),
    "mixtral": Mixture(
        router="MixtralTopKRouter", gate="w1", up="w3", down="w2", block="block_sparse_moe", always_normalised=True
    ),
}
"""By the `model_type` of a model's config. A plugin adds a family by an entry of its own."""


def mixture_of(model: Any) -> Mixture | None:
    """The family of a transformers model, None if it is dense or not known here."""
    return MIXTURES.get(model.config.get_text_config().model_type)


def require_mixture(model: Any) -> Mixture:
    """Raises MixtureError for a model whose routing cannot be replayed."""
    mixture = mixture_of(model)
    if mixture is None or not mixture.routers(model):
        raise MixtureError(
            f"learner.moe.replay is on, but a model of type {model.config.get_text_config().model_type!r} has no "
            f"routers known here (known are {', '.join(sorted(MIXTURES))}); set learner.moe.replay: false, "
            "or add its family to trainer.learner.moe.mixtures.MIXTURES in a plugin"
        )
    return mixture


def _layer(name: str) -> int:
    found = _LAYER.search(name)
    if found is None:
        raise MixtureError(f"{name} is a router outside of the model's layers, which no record of routing covers")
    return int(found.group(1))
