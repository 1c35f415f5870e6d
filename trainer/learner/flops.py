"""Floating point operations of an update, by a formula, and what devices can do.

A multiplication with a weight matrix costs 2 operations a token and weight; the backward pass costs twice the forward
pass. For a row of T tokens, N of them trained:

    3 * (2 * T * W + 2 * N * vocabulary * hidden + 4 * layers * heads * head_dim * P)

W are the weights of all layers' matrices (of a mixture of experts, those a token goes through), and P the pairs of
tokens of which one sees the other. Embedding, norms and softmax are left out, and so is what gradient checkpointing
computes again: this is work that serves the model, as in MFU.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from trainer.learner.packing import PackedRow, Span

PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H800": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L20": 119.5e12,
    "L4": 121e12,
    "A10": 125e12,
    "V100": 125e12,
}
"""Dense bfloat16 (V100: float16) operations a second, from vendors' data sheets, by words of the device's name."""


def peak_of(device_name: str) -> float | None:
    """Operations a second of a GPU, None if it is not known. Of names that fit, the longest decides."""
    fitting = [name for name in PEAKS if re.search(rf"(?<!\w){name}(?!\w)", device_name)]
    return PEAKS[max(fitting, key=len)] if fitting else None


def training_flops(rows: Iterable[PackedRow], config: Any) -> float:
    """Of forward and backward passes over rows; `config` is the model's, as transformers has it."""
    text = config.get_text_config()
    weights = layer_weights(text)
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    flops = 0.0
    for row in rows:
        flops += 2 * row.tokens * weights
        flops += 2 * len(row.target_ids) * text.vocab_size * text.hidden_size
        flops += 4 * text.num_hidden_layers * text.num_attention_heads * head_dim * pairs(row.spans)
    return 3 * flops


def pairs(spans: Sequence[Span]) -> int:
    """How many times a token sees one, itself included."""
    total = 0
    for span in spans:
        length, prefix = span.end - span.start, span.prefix_end - span.prefix_start
        total += length * prefix + length * (length + 1) // 2
    return total


def layer_weights(text: Any) -> int:
    """Weights that a token is multiplied with in all layers."""
    hidden, heads = text.hidden_size, text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or hidden // heads
    key_heads = getattr(text, "num_key_value_heads", None) or heads
    attention = 2 * hidden * heads * head_dim + 2 * hidden * key_heads * head_dim
    experts = getattr(text, "num_experts_per_tok", None)
    if experts:
        inner = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
        count = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None) or 0
        mlp = experts * 3 * hidden * inner + hidden * count
    else:
        mlp = 3 * hidden * text.intermediate_size
    return int(text.num_hidden_layers * (attention + mlp))
