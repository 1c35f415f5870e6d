"""Combinations that cannot work are refused with the mend."""

import pytest
from pydantic import ValidationError

from trainer.learner.config import LearnerConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ranks": 3, "nodes": 2}, "ranks 3 do not divide by nodes 2; take equally many"),
        ({"ranks": 6, "sp_size": 4}, "ranks 6 do not divide by sp_size 4.*take a multiple"),
        ({"zero_stage": 0, "offload_optimizer": True}, "set zero_stage to 1, 2 or 3"),
        ({"offload_activations": True}, "set gradient_checkpointing: true too"),
        ({"optimizer": "cpu_adam", "gpus_per_rank": 1}, "needs offload_optimizer: true"),
        ({"optimizer": "cpu_adam", "zero_stage": 0}, "take optimizer: adamw"),
        ({"matmul_dtype": "float32", "gpus_per_rank": 1}, "take matmul_dtype: auto, or dtype: float32"),
        ({"matmul_dtype": "bfloat16", "dtype": "float32"}, "would round numbers in float32; take matmul_dtype: auto"),
        ({"attention": "flash"}, "set gpus_per_rank: 1, or attention: auto"),
        ({"attention": "flex"}, "no backward pass on CPUs"),
        ({"attention": "flash", "gpus_per_rank": 1, "dtype": "float32"}, "set dtype: bfloat16"),
        ({"lr_schedule": "cosine", "lr_total_steps": 5, "lr_warmup_steps": 5}, "ends within the warm-up of 5 steps"),
        ({"freeze": ["layers.(0"]}, "is no regular expression: .*; escape what is meant literally"),
    ],
)
def test_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        LearnerConfig(**fields)
