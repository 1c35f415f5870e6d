"""Models under ZeRO-3 that compute packed rows: the policy, its frozen reference, the critic."""

import os
import warnings
from datetime import timedelta
from typing import Any

import torch
from jaxtyping import Float

from trainer.learner.config import CriticConfig, LearnerConfig
from trainer.learner.logprobs import LogProbHead
from trainer.learner.packing import PackedRow
from trainer.learner.value_head import ValueHead


class PackedModel:
    """A DeepSpeed engine, called row by row."""

    def __init__(self, engine: Any, head: Any) -> None:
        self.engine, self.head = engine, head

    def forward(self, row: PackedRow, temperature: float = 1.0) -> Float[torch.Tensor, " N"]:
        """What the head says of the row's trained tokens: log-probs, or values."""
        device = self.engine.device
        self.head.aim(row.target_ids.to(device), temperature)
        output = self.engine(
            input_ids=row.token_ids.to(device),
            position_ids=row.position_ids.to(device),
            logits_to_keep=row.hidden_index.to(device),
            spans=row.spans,
            use_cache=False,
        )
        return output.logits[0, :, 0]


def init_process_group(store: Any, rank: int, config: LearnerConfig) -> None:
    """Join the ranks that meet at `store`."""
    import deepspeed
    import deepspeed.ops
    import torch.distributed as dist
    from deepspeed.utils.logging import logger

    logger.setLevel("WARNING")
    # collectives that DeepSpeed calls are deprecated in torch: one line per call otherwise
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger")
    # DeepSpeed adopts the group; these are only read by its launcher detection
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(config.ranks), LOCAL_RANK="0")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    backend = "nccl" if config.gpus_per_rank else "gloo"
    timeout = timedelta(seconds=config.timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=config.ranks, timeout=timeout)
    # an op for inference only, compiled at start-up with a C++ compiler that a laptop need not have
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(backend)


def build_policy(model_path: str, config: LearnerConfig) -> PackedModel:
    """The trainable policy."""
    model = _load(model_path, config)
    model.lm_head = LogProbHead(model.lm_head, config.logprob_chunk)
    return _trainable(model, config, config.lr, config.lr_warmup_steps, config.weight_decay)


def build_critic(model_path: str, config: LearnerConfig, critic: CriticConfig) -> PackedModel:
    """The policy's initial weights under a head that says 0 at first, trained to foretell returns."""
    model = _load(model_path, config)
    model.lm_head = ValueHead(model.config.get_text_config().hidden_size, model.dtype)
    # the embedding is no output head any more: a tie would drag the new head along
    model.config.get_text_config().tie_word_embeddings = False
    return _trainable(model, config, critic.lr, critic.lr_warmup_steps, config.weight_decay)


def build_reference(model_path: str, config: LearnerConfig) -> PackedModel:
    """The policy's initial weights, frozen."""
    import deepspeed

    model: Any = _load(model_path, config)
    model.lm_head = LogProbHead(model.lm_head, config.logprob_chunk)
    model.requires_grad_(False)
    model.eval()
    engine, *_ = deepspeed.initialize(model=model, config=_deepspeed_config(config))
    return PackedModel(engine, engine.module.lm_head)


def _load(model_path: str, config: LearnerConfig) -> Any:
    """The model, with packed attention."""
    from transformers import AutoModelForCausalLM

    from trainer.learner.attention import NAME, register

    register()
    dtype = getattr(torch, config.dtype)
    return AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype, attn_implementation=NAME)


def _trainable(model: Any, config: LearnerConfig, lr: float, warmup: int, weight_decay: float) -> PackedModel:
    import deepspeed

    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=config.betas, weight_decay=weight_decay, fused=True)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config=_deepspeed_config(config),
        lr_scheduler=lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / max(warmup, 1))),
    )
    return PackedModel(engine, engine.module.lm_head)


def _deepspeed_config(config: LearnerConfig) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        # we scale losses ourselves and step once a mini-batch, however many rows it has
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.grad_clip,
        "bf16": {"enabled": config.dtype == "bfloat16"},
        "zero_optimization": {"stage": 3, "overlap_comm": bool(config.gpus_per_rank), "contiguous_gradients": True},
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
