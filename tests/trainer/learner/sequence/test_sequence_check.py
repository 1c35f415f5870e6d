"""Models whose rows cannot be spread over ranks are refused with the mend."""

import pytest
from transformers import Qwen3Config

from trainer.learner.sequence.check import SequenceError, require_divisible


def config(**changes):
    return Qwen3Config(num_attention_heads=6, num_key_value_heads=2, num_hidden_layers=2, **changes)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_heads_of_queries_divide(size):
    """Those of keys need not."""
    require_divisible(config(), size)


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({}, 4, r"sp_size is 4, which does not divide the model's 6 attention heads; use 1, 2, 3, 6"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            2,
            r"rotary embedding \(dynamic\).*set learner\.sp_size: 1",
        ),
    ],
)
def test_refused(changes, size, message):
    with pytest.raises(SequenceError, match=message):
        require_divisible(config(**changes), size)
    require_divisible(config(**changes), 1)
