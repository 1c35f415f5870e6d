"""Models under DeepSpeed that compute packed rows: the policy, its frozen reference, the critic."""

import os
import warnings
from datetime import timedelta
from typing import Any

import torch

from trainer.learner.attention_backends import backend_for
from trainer.learner.config import LearnerConfig
from trainer.learner.deepspeed_config import deepspeed_config
from trainer.learner.errors import LearnerError
from trainer.learner.freeze import freeze
from trainer.learner.logprobs import LogProbHead
from trainer.learner.lora.adapters import insert_adapters
from trainer.learner.moe.replay import RoutingReplay
from trainer.learner.optimizer import make_optimizer
from trainer.learner.packed_model import PackedModel
from trainer.learner.products import in_fp32, multiply_in_fp32
from trainer.learner.sequence.check import require_divisible
from trainer.learner.sequence.group import sequence_group
from trainer.learner.unsupported import unsupported
from trainer.learner.value_head import ValueHead


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
    # what ranks tell each other besides gradients is on CPUs, also where gradients are not
    backend = "cpu:gloo,cuda:nccl" if config.gpus_per_rank else "gloo"
    timeout = timedelta(seconds=config.timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=config.ranks, timeout=timeout)
    # an op for inference only, compiled at start-up with a C++ compiler that a laptop need not have
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("nccl" if config.gpus_per_rank else "gloo")


def build_policy(model_path: str, config: LearnerConfig) -> PackedModel:
    """The trainable policy."""
    model = _load(model_path, config)
    model.lm_head = LogProbHead(model.lm_head, config.logprob_chunk, in_fp32(config))
    if config.lora is not None:
        insert_adapters(model, config.lora)
    freeze(model, config.freeze)
    replay = RoutingReplay(model) if config.moe.replay else None
    policy = _trainable(model, config, config.lr)
    policy.replay = replay
    return policy


def build_critic(model_path: str, config: LearnerConfig) -> PackedModel:
    """The policy's initial weights under a head that says 0 at first, trained to foretell returns."""
    assert config.critic is not None
    model = _load(model_path, config)
    model.lm_head = ValueHead(model.config.get_text_config().hidden_size, model.dtype)
    # the embedding is no output head any more: a tie would drag the new head along
    model.config.get_text_config().tie_word_embeddings = False
    return _trainable(model, config, config.critic.lr)


def build_reference(model_path: str, config: LearnerConfig) -> PackedModel:
    """The policy's initial weights, frozen."""
    import deepspeed

    model: Any = _load(model_path, config)
    model.lm_head = LogProbHead(model.lm_head, config.logprob_chunk, in_fp32(config))
    model.requires_grad_(False)
    model.eval()
    replay = RoutingReplay(model) if config.moe.replay else None
    engine, *_ = deepspeed.initialize(model=model, config=deepspeed_config(config, train=False))
    reference = PackedModel(engine, engine.module.lm_head, backend_for(config))
    reference.replay, reference.sequence = replay, sequence_group(config)
    return reference


def _load(model_path: str, config: LearnerConfig) -> Any:
    """The model, with packed attention.

    Raises:
        LearnerError: it has what the learner does not compute.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = AutoConfig.from_pretrained(model_path)
    _without_dropout(settings.get_text_config())
    dtype, attention = getattr(torch, config.dtype), backend_for(config).name
    model = AutoModelForCausalLM.from_pretrained(
        model_path, config=settings, dtype=dtype, attn_implementation=attention
    )
    reason = unsupported(model.config.get_text_config().to_dict())
    if reason is not None:
        raise LearnerError(f"the model at {model_path} {reason}; train another one")
    require_divisible(model.config, config.sp_size)
    if in_fp32(config):
        multiply_in_fp32(model)
    return model


def _without_dropout(text_config: Any) -> None:
    """The engine samples from the policy without dropout, and that policy is trained."""
    for name, value in text_config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(text_config, name, 0.0)


def _trainable(model: Any, config: LearnerConfig, lr: float) -> PackedModel:
    import deepspeed

    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    optimizer = make_optimizer(model.parameters(), lr, config.weight_decay, config)
    # the learning rate is set before each update: see `schedule`
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=deepspeed_config(config))
    if config.zero_stage == 0 and config.dtype == "float32":
        # here DeepSpeed clips, and tells nobody the norm
        engine.clip_fp32_gradients = lambda: _clip(engine, config.grad_clip)
    packed = PackedModel(engine, engine.module.lm_head, backend_for(config), config.offload_activations)
    packed.sequence = sequence_group(config)
    return packed


def _clip(engine: Any, limit: float) -> None:
    engine._global_grad_norm = torch.nn.utils.clip_grad_norm_(engine.module.parameters(), limit)
