"""Tiny mixtures of experts, and an engine's record of their routing as transformers computes it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.tiny import tiny_tokenizer

FAMILIES = ("qwen3_moe", "qwen2_moe", "olmoe", "mixtral")
EXPERTS, CHOSEN, LAYERS = 8, 2, 2


def tiny_mixture(path: Path, family: str = "qwen3_moe", tied: bool = False, seed: int = 0, **changes: Any) -> Path:
    """Save a random mixture of experts and its tokenizer into `path`; returns `path`.

    Its routers hardly prefer any expert, and its experts differ much: which ones are taken decides what is said.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": LAYERS,
        # heads of 32, the least that vLLM's CPU attention computes
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_experts_per_tok": CHOSEN,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": tied,
    }
    settings["num_local_experts" if family == "mixtral" else "num_experts"] = EXPERTS
    if family.startswith("qwen"):
        settings |= {"moe_intermediate_size": 32, "norm_topk_prob": True, "decoder_sparse_step": 1}
    if family == "qwen2_moe":
        settings |= {"shared_expert_intermediate_size": 32}
    tokenizer = tiny_tokenizer()
    settings |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings | changes)).float()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(".gate.weight"):
                    parameter.normal_(std=1e-3)
                elif parameter.dim() == 3:
                    parameter.normal_(std=0.3)
                elif parameter.dim() == 2:
                    parameter.mul_(6.0)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@torch.no_grad()
def record_routing(model: Any, token_ids: Any) -> np.ndarray:
    """[tokens, layers, k] the experts that the model chooses for a sequence read alone, as an engine returns them."""
    chosen: list[torch.Tensor] = []
    routers = [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]
    hooks = [router.register_forward_hook(lambda _m, _i, output: chosen.append(output[2])) for router in routers]
    model.model(input_ids=torch.tensor([list(token_ids)]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.stack(chosen, 1).numpy().astype("<i2")


def disturb_routers(model: Any, seed: int = 1) -> None:
    """Change the routers by as much as they are: other experts are taken, with nearly the same gates."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for name, parameter in model.named_parameters():
            if name.endswith(".gate.weight"):
                parameter.add_(torch.randn_like(parameter) * 1e-3)
