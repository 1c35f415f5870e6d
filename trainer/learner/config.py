"""How the policy is trained."""

import re
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trainer.learner.lora.config import LoraConfig
from trainer.learner.moe.config import MoeConfig


class CriticConfig(BaseModel):
    """The critic that the estimator gae needs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lr: float = Field(1e-5, gt=0, lt=1, description="Learning rate of AdamW")
    lr_warmup_steps: int = Field(0, ge=0, description="Steps over which the learning rate rises linearly")


class LearnerConfig(BaseModel):
    """DeepSpeed ranks and their optimizer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ranks: int = Field(1, ge=1, description="DeepSpeed ranks, each a Ray actor")
    nodes: int = Field(1, ge=1, description="Machines that the ranks are spread over, equally many on each")
    gpus_per_rank: int = Field(0, ge=0, le=1, description="1 to train on GPUs with NCCL, 0 for CPUs with gloo")
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="Precision of the forward and backward pass")
    matmul_dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto",
        description="What CPUs multiply in where dtype is bfloat16; auto is float32 on x86 without AMX, else bfloat16",
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        3, description="What ranks share out: 1 optimizer states, 2 gradients too, 3 weights too; 0 nothing"
    )
    lr: float = Field(1e-6, gt=0, lt=1, description="Learning rate of AdamW")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="How the learning rate goes on after the warm-up"
    )
    lr_warmup_steps: int = Field(0, ge=0, description="Steps over which the learning rate rises linearly")
    lr_total_steps: int = Field(
        -1, ge=-1, description="Steps over which it falls; -1 for those of the run, or none where no run says so"
    )
    lr_min_ratio: float = Field(0.1, gt=0, le=1, description="What is left of the learning rate at the end of its fall")
    optimizer: Literal["adamw", "cpu_adam"] = Field(
        "adamw", description="AdamW of torch, or DeepSpeed's for optimizer states on a CPU, which needs a C++ compiler"
    )
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's decay rates")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay")
    grad_clip: float = Field(1.0, gt=0, description="Largest norm of the gradient; a larger one is scaled down")
    freeze: tuple[str, ...] = Field(
        (), description="Patterns (regular expressions, found anywhere in a name) of parameters that are not trained"
    )
    micro_batch_tokens: int = Field(
        2048, ge=1, description="Tokens a rank computes at once: bounds memory, never changes the gradient"
    )
    sp_size: int = Field(
        1, ge=1, description="Ranks that share the tokens of each row (Ulysses), for sequences longer than one can hold"
    )
    share_prompts: Literal["auto", "always", "never"] = Field(
        "auto", description="Compute what rollouts of a group have in common once: where it pays, always or never"
    )
    attention: Literal["auto", "sdpa", "flex", "flash"] = Field(
        "auto", description="Attention over packed rows: sdpa on CPUs; flash on GPUs, or flex where it is not installed"
    )
    mini_batch_size: int | None = Field(
        None,
        ge=1,
        description="About so many trials per optimizer step, equally many in each; all of the batch if unset",
    )
    ppo_epochs: int = Field(1, ge=1, description="Times that an update goes over its batch")
    critic: CriticConfig | None = Field(None, description="A critic, for estimators that need values; `{}` for one")
    lora: LoraConfig | None = Field(
        None, description="Train low-rank adapters instead of all weights; `{}` for the usual ones"
    )
    moe: MoeConfig = Field(MoeConfig(), description="What only concerns a mixture of experts")
    gradient_checkpointing: bool = Field(False, description="Recompute activations in the backward pass to save memory")
    offload_activations: bool = Field(
        False, description="Keep what gradient checkpointing saves in host memory; needs gradient_checkpointing"
    )
    offload_optimizer: bool = Field(False, description="Keep optimizer states in host memory; needs zero_stage 1 to 3")
    logprob_chunk: int = Field(256, ge=1, description="Tokens whose logits exist at once")
    threads: int | None = Field(None, ge=1, description="CPU threads of a rank; cores divided by ranks if unset")
    timeout: float = Field(1800.0, gt=0, description="Seconds after which a collective that a rank never joins fails")

    @property
    def ranks_per_node(self) -> int:
        return self.ranks // self.nodes

    @property
    def sequence_groups(self) -> int:
        """How many rows are computed at a time, each by `sp_size` ranks that follow each other."""
        return self.ranks // self.sp_size

    @property
    def row_tokens(self) -> int:
        """Most tokens of a row, unless one rollout alone is longer."""
        return self.micro_batch_tokens * self.sp_size

    def counts(self, rank: int) -> bool:
        """Whether this rank is the one of its sequence group that speaks for their row where rows are counted."""
        return rank % self.sp_size == 0

    def over(self, total_steps: int) -> Self:
        """The same for a run of so many steps, which the schedule of the learning rate falls over if it names none."""
        return self if self.lr_total_steps > 0 else self.model_copy(update={"lr_total_steps": total_steps})

    @field_validator("freeze")
    @classmethod
    def _are_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"{pattern!r} is no regular expression: {error}; escape what is meant literally"
                ) from error
        return patterns

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.ranks % self.nodes:
            raise ValueError(f"ranks {self.ranks} do not divide by nodes {self.nodes}; take equally many on each node")
        if self.ranks % self.sp_size:
            raise ValueError(
                f"ranks {self.ranks} do not divide by sp_size {self.sp_size}, the ranks that share a row; take a "
                "multiple of it as ranks, or a smaller sp_size"
            )
        if self.offload_optimizer and not self.zero_stage:
            raise ValueError("offload_optimizer needs sharded optimizer states; set zero_stage to 1, 2 or 3")
        if self.offload_activations and not self.gradient_checkpointing:
            raise ValueError(
                "offload_activations moves what gradient checkpointing saves; set gradient_checkpointing: true too"
            )
        if self.optimizer == "cpu_adam" and self.gpus_per_rank and not self.offload_optimizer:
            raise ValueError(
                "optimizer cpu_adam on GPUs needs offload_optimizer: true; without offload take optimizer: adamw"
            )
        if self.optimizer == "cpu_adam" and not self.zero_stage:
            raise ValueError("optimizer cpu_adam needs zero_stage 1, 2 or 3; with stage 0 take optimizer: adamw")
        if self.matmul_dtype == "float32" and self.gpus_per_rank:
            raise ValueError("matmul_dtype float32 is for CPUs; on GPUs take matmul_dtype: auto, or dtype: float32")
        if self.matmul_dtype == "bfloat16" and self.dtype == "float32":
            raise ValueError("matmul_dtype bfloat16 would round numbers in float32; take matmul_dtype: auto")
        if self.attention == "flash" and not self.gpus_per_rank:
            raise ValueError("attention flash needs GPUs; set gpus_per_rank: 1, or attention: auto")
        if self.attention == "flex" and not self.gpus_per_rank:
            raise ValueError("attention flex has no backward pass on CPUs; set gpus_per_rank: 1, or attention: auto")
        if self.attention == "flash" and self.dtype == "float32":
            raise ValueError("attention flash computes in bfloat16 only; set dtype: bfloat16, or attention: flex")
        if self.lr_schedule != "constant" and 0 < self.lr_total_steps <= self.lr_warmup_steps:
            raise ValueError(
                f"lr_total_steps {self.lr_total_steps} ends within the warm-up of {self.lr_warmup_steps} steps; "
                "raise it, or lower lr_warmup_steps"
            )
        return self


def optimizer_steps(trials: int, size: int | None) -> int:
    """Into how many mini-batches of about `size` an update divides its trials."""
    return 1 if size is None else max((2 * trials + size) // (2 * size), 1)
