"""What an update cost, under verl's names. Each function is a collective, and gives the same on all ranks."""

import resource
from collections.abc import Sequence
from typing import Any

import torch

from trainer.learner.collective import gather, sum_over_ranks
from trainer.learner.config import LearnerConfig
from trainer.learner.flops import peak_of, training_flops
from trainer.learner.mini_batch import MiniBatch
from trainer.learner.samples import TrainSample

_GB = 2**30


def speed_metrics(model: Any, work: Sequence[MiniBatch], config: LearnerConfig, seconds: float) -> dict[str, float]:
    """Operations and tokens of the policy's update. `perf/mfu/actor` only on GPUs whose peak is known.

    `perf/tokens_per_second/actor` are the tokens of the rollouts that were trained, prompts included, as if nothing had
    been shared, for each rank.
    """
    rows = [row for part in work for row in part.rows]
    passes = config.ppo_epochs
    flops, slowest = training_flops(rows, model.engine.module.config) * passes, max(gather(seconds))
    # ranks that share a row have each counted all of it
    total = sum_over_ranks([flops])[0] / config.sp_size
    tokens = sum(len(sample.token_ids) for part in work for sample in part.with_gradient) * passes
    if not tokens:
        return {}
    metrics = {
        "perf/tokens_per_second/actor": tokens / slowest / config.ranks,
        "perf/tflops/actor": total / slowest / config.ranks / 1e12,
    }
    peak = peak_of(torch.cuda.get_device_name()) if model.device.type == "cuda" else None
    return metrics | ({"perf/mfu/actor": total / slowest / config.ranks / peak} if peak else {})


def seqlen_metrics(samples: Sequence[TrainSample], work: Sequence[MiniBatch], ranks: int) -> dict[str, float]:
    """Tokens a rank would have if the batch were dealt out in its order, and tokens it computes as it is balanced.

    A rank, or those that share rows, as one: `ranks` says how many of them there are.

    The latter are fewer where prompts are shared and rollouts without a gradient are left out.
    """
    if not samples:
        return {}
    share = -(-len(samples) // ranks)
    dealt = [sum(len(s.token_ids) for s in samples[rank * share : (rank + 1) * share]) for rank in range(ranks)]
    balanced = [sum(loads) for loads in zip(*(part.loads for part in work), strict=True)]
    return {
        "global_seqlen/min": float(min(dealt)),
        "global_seqlen/max": float(max(dealt)),
        "global_seqlen/minmax_diff": float(max(dealt) - min(dealt)),
        "global_seqlen/mean": sum(dealt) / ranks,
        "global_seqlen/balanced_min": float(min(balanced)),
        "global_seqlen/balanced_max": float(max(balanced)),
    }


def memory_metrics(device: torch.device) -> dict[str, float]:
    """Peaks since the rank was started, in GB: of the largest rank, and of each."""
    mine = {"perf/cpu_memory_used_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _GB}
    if device.type == "cuda":
        mine["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated(device) / _GB
        mine["perf/max_memory_reserved_gb"] = torch.cuda.max_memory_reserved(device) / _GB
    ranks = gather(mine)
    metrics = {name: max(rank[name] for rank in ranks) for name in mine}
    if len(ranks) > 1:
        metrics |= {f"{name}/rank_{place}": rank[name] for place, rank in enumerate(ranks) for name in mine}
    return metrics
