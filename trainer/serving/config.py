"""How the policy is served."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainer.serving.admission import AdmissionConfig


class ServingConfig(BaseModel):
    """vLLM replicas of the policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    replicas: int = Field(1, ge=1, description="vLLM engines that serve the policy")
    tensor_parallel: int = Field(1, ge=1, description="Devices a replica is sharded over")
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="Precision of the served weights")
    window: int = Field(2048, ge=16, description="Longest sequence, prompt and answer together, in tokens")
    tool_call_parser: str | None = Field(
        None, description="vLLM's parser of the tool calls that this model writes, `hermes` say; none: they are text"
    )
    reasoning_parser: str | None = Field(
        None, description="vLLM's parser of the thinking that this model writes, `qwen3` say; none: it is text"
    )
    max_num_seqs: int = Field(64, ge=1, description="Sequences that a replica decodes at once")
    kv_cache_gib: int = Field(1, ge=1, description="KV cache of a CPU replica, in GiB")
    gpu_memory_utilization: float = Field(
        0.6, gt=0, le=1, description="Share of a GPU's memory that a replica may take"
    )
    enforce_eager: bool = Field(
        True, description="No CUDA graphs or compilation: starts faster, decodes slower on GPUs"
    )
    transport: Literal["auto", "shared_memory", "cuda_ipc", "nccl"] = Field(
        "auto",
        description="How weights are synced: auto is shared_memory on CPUs, cuda_ipc if colocated, nccl between GPUs",
    )
    bucket_mib: int = Field(64, ge=1, description="Weights that are on their way at once in a sync, in MiB")
    sync_timeout: float = Field(600.0, gt=0, description="Seconds after which a sync that has not ended fails")
    kv_after_sync: Literal["recompute", "keep"] = Field(
        "recompute",
        description="What becomes of the KV cache of requests that a sync freezes: recompute it with the new weights, "
        "or keep it, which is faster, and makes log-probs of their next tokens those of no one version",
    )
    colocated: bool = Field(
        False, description="Replicas share the learner's GPUs and take turns with it: one sleeps while the other works"
    )
    lora_rank: int | None = Field(
        None,
        ge=1,
        le=512,
        description="Serve LoRA adapters up to this rank beside the base, for learner.lora.sync: adapters",
    )
    capture_routing: bool = Field(
        False, description="Record which experts of a mixture read each token, for learner.moe.replay; needs GPUs"
    )
    threads: int | None = Field(None, ge=1, description="CPU threads of a replica; all cores if unset")
    admission: AdmissionConfig | None = Field(
        None, description="Let sessions wait before a replica whose KV cache is nearly full; `{}` for the usual limits"
    )

    @property
    def portion_bytes(self) -> int:
        """Bytes that the learner gathers at once: half a bucket, while the other half is being received."""
        return self.bucket_mib * 2**20 // 2

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.colocated and self.transport == "nccl":
            raise ValueError(
                "transport nccl cannot connect a learner and a replica on one GPU; set transport: auto, "
                "or colocated: false"
            )
        if self.transport == "cuda_ipc" and not self.colocated:
            raise ValueError(
                "transport cuda_ipc needs a learner and a replica on one GPU; set colocated: true, or transport: auto"
            )
        if self.colocated and self.lora_rank is not None:
            raise ValueError(
                f"lora_rank is {self.lora_rank}, but adapters do not sleep with a colocated replica; leave lora_rank "
                "unset and set learner.lora.sync: merged, or colocated: false"
            )
        if self.colocated and self.tensor_parallel > 1:
            raise ValueError(
                f"colocated replicas hold one GPU each, but tensor_parallel is {self.tensor_parallel}; set it to 1 and "
                "raise replicas, or set colocated: false"
            )
        return self
