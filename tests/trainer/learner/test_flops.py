"""The FLOP formula against what torch counts, and peaks by name."""

import pytest
from support.plain import load_plain, samples_like
from support.tiny import tiny_model
from torch.utils.flop_counter import FlopCounterMode

from trainer.learner.attention import visible
from trainer.learner.flops import pairs, peak_of, training_flops
from trainer.learner.packing import pack_rows

SAMPLES = samples_like([(17, 3), (9, 1), (6, 2)])


def test_counted_pairs_are_those_of_the_mask():
    (row,) = pack_rows(SAMPLES, 2048)
    assert pairs(row.spans) == int(visible(row.spans).sum())


def test_formula_agrees_with_what_torch_counts(tmp_path):
    """On one whole sequence; torch counts the masked half of attention too, and logits that nobody asks for."""
    folder = tiny_model(tmp_path / "tiny")
    model, (row,) = load_plain(folder), pack_rows(SAMPLES[:1], 2048)
    text = model.config
    with FlopCounterMode(display=False) as counter:
        model(input_ids=row.token_ids, use_cache=False).logits.sum().backward()
    tokens = row.tokens
    attention = 3 * 4 * text.num_hidden_layers * text.num_attention_heads * text.head_dim
    masked = attention * (tokens * tokens - pairs(row.spans))
    unscored = 3 * 2 * (tokens - len(row.target_ids)) * text.vocab_size * text.hidden_size
    assert training_flops([row], text) + masked + unscored == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_peaks_of_devices():
    assert peak_of("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_of("NVIDIA H100 PCIe") == 756e12
    assert peak_of("NVIDIA H20") == 148e12 and peak_of("NVIDIA H200") == 989e12
    assert peak_of("NVIDIA L40") == 181e12 and peak_of("NVIDIA L40S") == 362e12 and peak_of("NVIDIA L4") == 121e12
    assert peak_of("NVIDIA A100-SXM4-80GB") == 312e12 and peak_of("NVIDIA GH200 480GB") is None
    assert peak_of("NVIDIA RTX A1000") is None and peak_of("AMD EPYC") is None


def test_a_mixture_counts_the_experts_a_token_goes_through(tmp_path):
    from transformers import Qwen3MoeConfig

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    from trainer.learner.flops import layer_weights

    config = Qwen3MoeConfig(**sizes, head_dim=4, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=5)
    assert layer_weights(config) == 4 * 8 * 8 + 2 * 3 * 8 * 5 + 8 * 6
