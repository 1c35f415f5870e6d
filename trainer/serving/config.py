"""How the policy is served."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


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
    bucket_mib: int = Field(64, ge=1, description="Shared memory through which weights are synced, in MiB")
    threads: int | None = Field(None, ge=1, description="CPU threads of a replica; all cores if unset")
