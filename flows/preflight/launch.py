"""What starting a run would launch, in full: actors, their devices and environment, engine arguments, DeepSpeed."""

import os
from pathlib import Path
from typing import Any

import yaml

from flows.config import RunConfig
from flows.configuration.redaction import Redactor
from flows.environment import tracking_uri
from tasks.journal import Journal
from trainer.learner.config import LearnerConfig
from trainer.placement import cpu_threads, engine_environment
from trainer.serving.config import ServingConfig
from trainer.serving.pool import EXTENSION

_PREFECT_FILE = Path(__file__).resolve().parents[2] / "prefect.yaml"


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
            "deployments": deployments(),
        },
        "mlflow": tracking_uri(root),
        "cluster": _cluster(name, config),
        "actors": [*_learner(name, config), *_replicas(name, config, journal, config.experiment)],
        "engine_arguments": engine_arguments(config.model.path, config.serving, bool(config.learner.gpus_per_rank)),
        "weight_transport": _transport(config),
        "deepspeed": deepspeed_config(config.learner.over(config.schedule.total_steps)),
        "sandboxes": {
            "backend": config.sandbox.backend,
            "at_once": config.rollout.concurrency,
            "settings": config.sandbox.model_dump(mode="json", exclude_unset=True),
        },
        "proxy": "127.0.0.1, a free port, a session a trial",
    }
    shown: dict[str, Any] = Redactor().value(plan)
    return shown


def engine_arguments(model: str, serving: ServingConfig, gpus: bool = False) -> dict[str, Any]:
    """The keyword arguments of vLLM's engine, as `trainer.serving.replica.Replica.boot` gives them; `seed`, which each
    replica draws for itself, is not among them.
    """
    from trainer.serving.adapters import room_for
    from trainer.serving.transports import TRANSPORTS, transport_of

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
        "weight_transfer_config": {"backend": TRANSPORTS[transport_of(serving, gpus)].backend},
        "enable_sleep_mode": serving.colocated,
        "enable_return_routed_experts": serving.capture_routing,
        "enable_lora": serving.lora_rank is not None,
        "max_lora_rank": room_for(serving.lora_rank or 1),
        "moe_backend": "triton" if gpus else "auto",
        "worker_extension_cls": EXTENSION,
        "disable_log_stats": False,
    }


def deepspeed_config(learner: LearnerConfig) -> dict[str, Any]:
    """What DeepSpeed is given."""
    from trainer.learner import deepspeed_config

    return deepspeed_config.deepspeed_config(learner)


def deployments() -> list[dict[str, Any]]:
    """The deployments of prefect.yaml that start this flow when nobody does by hand; none where there is no file."""
    if not _PREFECT_FILE.is_file():
        return []
    stored = yaml.safe_load(_PREFECT_FILE.read_text(encoding="utf-8")).get("deployments") or []
    return [
        {
            "name": entry["name"],
            "entrypoint": entry["entrypoint"],
            "work_pool": (entry.get("work_pool") or {}).get("name"),
            "schedules": [s.get("cron") or s.get("interval") for s in entry.get("schedules") or []],
            "concurrency_limit": entry.get("concurrency_limit"),
        }
        for entry in stored
        if entry["name"] in ("train", "evaluate")
    ]


def _transport(config: RunConfig) -> str:
    from trainer.serving.transports import transport_of

    return transport_of(config.serving, bool(config.learner.gpus_per_rank))


def _cluster(name: str, config: RunConfig) -> dict[str, Any]:
    learner, serving = config.learner, config.serving
    gpus = learner.gpus_per_rank
    shared = 0 if serving.colocated else serving.replicas * serving.tensor_parallel * gpus
    address = os.environ.get("RAY_ADDRESS")
    private = f"private, on this machine, {cpu_threads()} CPUs, ends with the run"
    bundle = {"GPU": learner.ranks_per_node * gpus} if gpus else {"CPU": "any"}
    return {
        "ray": address or private,
        "gpus_needed": learner.ranks * gpus + shared,
        "placement_group": {
            "name": f"{name}/learner",
            "strategy": "STRICT_SPREAD" if learner.nodes > 1 else "STRICT_PACK",
            "bundles": [bundle] * learner.nodes,
        },
    }


def _learner(name: str, config: RunConfig) -> list[dict[str, Any]]:
    learner = config.learner
    threads = learner.threads or max(cpu_threads() // learner.ranks_per_node, 1)
    return [
        {
            "name": f"{name}/learner/{rank}",
            "class": "trainer.learner.rank.LearnerRank",
            "node": f"bundle {rank // learner.ranks_per_node} of {name}/learner",
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
    if serving.capture_routing:
        extra["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    return [
        {
            "name": f"{name}/replica/{i}",
            "class": "trainer.serving.replica.Replica",
            "node": f"that of {name}/learner/{i}, whose GPU it shares in turns" if serving.colocated else "any",
            "gpus": 0 if serving.colocated else config.learner.gpus_per_rank * serving.tensor_parallel,
            "threads": threads,
            "log": str(journal.logs / f"{experiment}_vllm.log"),
            "environment": engine_environment(threads) | extra,
        }
        for i in range(serving.replicas)
    ]
