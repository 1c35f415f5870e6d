"""How a replica's vLLM engine is made: what a run's settings mean to it, and what no run may change."""

import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.serving.adapters import room_for
from trainer.serving.config import ServingConfig
from trainer.serving.transports import TRANSPORTS


def make_engine(
    model_path: str,
    config: ServingConfig,
    extension: str,
    transport: str,
    log_file: str | None,
    stat_loggers: Sequence[Any] | None,
) -> Any:
    """A vLLM `AsyncLLM` on the weights at `model_path`, which will be sent others by `transport`.

    Args:
        extension: Class that is mixed into its workers.
        log_file: Where its own log goes, with its throughput; None for nowhere.
        stat_loggers: vLLM factories that are told of the engine's state.
    """
    _log_to(log_file)
    import torch
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    args = AsyncEngineArgs(
        model=model_path,
        served_model_name=["policy"],
        dtype=config.dtype,
        max_model_len=config.window,
        max_num_seqs=config.max_num_seqs,
        tensor_parallel_size=config.tensor_parallel,
        # one process for engine and worker: of two, the one that waits spins and takes a core from the other
        distributed_executor_backend="uni" if config.tensor_parallel == 1 else None,
        gpu_memory_utilization=config.gpu_memory_utilization,
        enforce_eager=config.enforce_eager,
        enable_prefix_caching=True,
        # replicas with the same seed, vLLM's usual one, would answer the attempts at a task alike
        seed=secrets.randbits(31),
        # whole blocks are shared: the CPU's usual 128 tokens are longer than many a prompt
        block_size=32,
        # log-probs of the distribution that was sampled from, temperature included
        logprobs_mode="processed_logprobs",
        # the checkpoint's own generation defaults (top_k, penalties) must not bend what the learner models
        generation_config="vllm",
        weight_transfer_config={"backend": TRANSPORTS[transport].backend},
        enable_sleep_mode=config.colocated,
        enable_return_routed_experts=config.capture_routing,
        enable_lora=config.lora_rank is not None,
        max_lora_rank=room_for(config.lora_rank or 1),
        # of the kernels for experts on GPUs, the ones whose weights lie as in a checkpoint, and can be read back
        moe_backend="triton" if torch.cuda.is_available() else "auto",
        worker_extension_cls=extension,
        disable_log_stats=log_file is None,
    )
    return AsyncLLM.from_engine_args(args, stat_loggers=stat_loggers)


def _log_to(log_file: str | None) -> None:
    """Send vLLM's own log to the run's file instead of the screen."""
    logging.getLogger("vllm").handlers.clear()
    logging.getLogger("vllm").propagate = False
    if log_file is None:
        return
    Path(log_file).parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(log_file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.getLogger("vllm").addHandler(handler)
