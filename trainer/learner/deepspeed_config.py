"""What DeepSpeed is told."""

from typing import Any

from trainer.learner.config import LearnerConfig


def deepspeed_config(config: LearnerConfig, train: bool = True) -> dict[str, Any]:
    """Its configuration for a model that is trained, or for a frozen one, which ZeRO-3 alone can share out."""
    stage = config.zero_stage if train or config.zero_stage == 3 else 0
    on_gpus = bool(config.gpus_per_rank)
    zero: dict[str, Any] = {
        "stage": stage,
        # gradients of stages 0 and 1 are reduced at the step, when there is nothing left to overlap with
        "overlap_comm": on_gpus and stage >= 2,
        "contiguous_gradients": True,
    }
    if train and config.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": on_gpus}
    return {
        # in bfloat16 a row's gradient is lost on the sum of a few hundred others; stages 0 and 1 have no such choice
        # (with it DeepSpeed takes another optimizer for stage 1, whose checkpoints are laid out in another way)
        "data_types": {"grad_accum_dtype": "fp32" if train and stage >= 2 else None},
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        # we scale losses ourselves and step once a mini-batch, however many rows it has
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.grad_clip,
        "bf16": {"enabled": config.dtype == "bfloat16"},
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
