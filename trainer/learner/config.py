"""How the policy is trained."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class CriticConfig(BaseModel):
    """The critic that the estimator gae needs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lr: float = Field(1e-5, gt=0, lt=1, description="Learning rate of AdamW")
    lr_warmup_steps: int = Field(0, ge=0, description="Steps over which the learning rate rises linearly")


class LearnerConfig(BaseModel):
    """DeepSpeed ZeRO-3 ranks and their optimizer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ranks: int = Field(1, ge=1, description="ZeRO-3 ranks, each a Ray actor")
    gpus_per_rank: int = Field(0, ge=0, le=1, description="1 to train on GPUs with NCCL, 0 for CPUs with gloo")
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="Precision of the forward and backward pass")
    lr: float = Field(1e-6, gt=0, lt=1, description="Learning rate of AdamW")
    lr_warmup_steps: int = Field(0, ge=0, description="Steps over which the learning rate rises linearly")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's decay rates")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay")
    grad_clip: float = Field(1.0, gt=0, description="Largest norm of the gradient; a larger one is scaled down")
    micro_batch_tokens: int = Field(
        2048, ge=1, description="Tokens computed at once: bounds memory, never changes the gradient"
    )
    mini_batch_size: int | None = Field(
        None, ge=1, description="Trials per optimizer step; all of the batch (one on-policy step) if unset"
    )
    ppo_epochs: int = Field(1, ge=1, description="Times that an update goes over its batch")
    critic: CriticConfig | None = Field(None, description="A critic, for estimators that need values; `{}` for one")
    gradient_checkpointing: bool = Field(False, description="Recompute activations in the backward pass to save memory")
    logprob_chunk: int = Field(512, ge=1, description="Tokens whose logits exist at once")
    threads: int | None = Field(None, ge=1, description="CPU threads of a rank; cores divided by ranks if unset")
    timeout: float = Field(1800.0, gt=0, description="Seconds after which a collective that a rank never joins fails")
