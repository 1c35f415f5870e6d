"""What starting a run would launch, in full: actors, their devices and environment, engine arguments, DeepSpeed."""

import os
from pathlib import Path
from typing import Any

from flows.config import RunConfig
from flows.configuration.redaction import Redactor
from flows.environment import tracking_uri
from tasks.journal import Journal
from trainer.learner.config import LearnerConfig
from trainer.placement import cpu_threads, engine_environment
from trainer.serving.config import ServingConfig
from trainer.serving.pool import EXTENSION


def launch_plan(config: RunConfig, root: Path) -> dict[str, Any]:
    """The launch as plain values; nothing is started."""
    name = f"{config.project}/{config.experiment}"
    journal = Journal(root / name)
    plan = {
        "run": name,
        "journal": str(journal.root),
        "flow": {
            "name": "train",
            "run_name": f"train-{config.project}-{config.experiment}",
            "subflows": f"{config.schedule.total_steps} of rl_step, one a step",
            "prefect": os.environ.get("PREFECT_API_URL", "a private server that ends with the process"),
            "deployments": [],
        },
        "mlflow": tracking_uri(root),
        "cluster": _cluster(config),
        "actors": [*_learner(name, config), *_replicas(name, config, journal, config.experiment)],
        "engine_arguments": engine_arguments(config.model.path, config.serving),
        "deepspeed": deepspeed_config(config.learner),
        "sandboxes": {
            "backend": config.sandbox.backend,
            "at_once": config.rollout.concurrency,
            "settings": config.sandbox.model_dump(mode="json", exclude_unset=True),
        },
        "proxy": "127.0.0.1, a free port, a session a trial",
    }
    shown: dict[str, Any] = Redactor().value(plan)
    return shown


def engine_arguments(model: str, serving: ServingConfig) -> dict[str, Any]:
    """The keyword arguments of vLLM's engine, as `trainer.serving.replica.Replica.boot` gives them."""
    return {
        "model": model,
        "served_model_name": ["policy"],
        "dtype": serving.dtype,
        "max_model_len": serving.window,
        "max_num_seqs": serving.max_num_seqs,
        "tensor_parallel_size": serving.tensor_parallel,
        "distributed_executor_backend": "uni" if serving.tensor_parallel == 1 else None,
        "gpu_memory_utilization": serving.gpu_memory_utilization,
        "enforce_eager": serving.enforce_eager,
        "enable_prefix_caching": True,
        "block_size": 32,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "weight_transfer_config": {"backend": "testgrad_shm"},
        "worker_extension_cls": EXTENSION,
        "disable_log_stats": False,
    }


def deepspeed_config(learner: LearnerConfig) -> dict[str, Any]:
    """What DeepSpeed is given."""
    from trainer.learner.engine import _deepspeed_config

    return _deepspeed_config(learner)


def _cluster(config: RunConfig) -> dict[str, Any]:
    gpus = config.learner.gpus_per_rank
    needed = config.learner.ranks * gpus + config.serving.replicas * config.serving.tensor_parallel * gpus
    address = os.environ.get("RAY_ADDRESS")
    private = f"private, on this machine, {cpu_threads()} CPUs, ends with the run"
    return {"ray": address or private, "gpus_needed": needed}


def _learner(name: str, config: RunConfig) -> list[dict[str, Any]]:
    learner = config.learner
    threads = learner.threads or max(cpu_threads() // learner.ranks, 1)
    return [
        {
            "name": f"{name}/learner/{rank}",
            "class": "trainer.learner.rank.LearnerRank",
            "gpus": learner.gpus_per_rank,
            "threads": threads,
            "backend": "nccl" if learner.gpus_per_rank else "gloo",
            "environment": engine_environment(threads),
        }
        for rank in range(learner.ranks)
    ]


def _replicas(name: str, config: RunConfig, journal: Journal, experiment: str) -> list[dict[str, Any]]:
    serving, threads = config.serving, config.serving.threads or cpu_threads()
    extra = {"VLLM_CPU_KVCACHE_SPACE": str(serving.kv_cache_gib), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    return [
        {
            "name": f"{name}/replica/{i}",
            "class": "trainer.serving.replica.Replica",
            "gpus": config.learner.gpus_per_rank * serving.tensor_parallel,
            "threads": threads,
            "log": str(journal.logs / f"{experiment}_vllm.log"),
            "environment": engine_environment(threads) | extra,
        }
        for i in range(serving.replicas)
    ]
