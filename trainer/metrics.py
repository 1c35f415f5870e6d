"""Numbers under verl's names."""

import math
import os
from collections.abc import Mapping, Sequence

import psutil

_NOT_WORK = ("idle", "iowait", "steal", "guest", "guest_nice")
"""Parts of a core's time in which it did nothing for this machine, or that are counted among others."""


def distribution(name: str, values: Sequence[float]) -> dict[str, float]:
    """`name/mean`, `name/max` and `name/min`; nothing for no values."""
    if not values:
        return {}
    return {f"{name}/mean": sum(values) / len(values), f"{name}/max": max(values), f"{name}/min": min(values)}


def cpu_seconds() -> float:
    """Processor time so far of this process, and of its children that have ended, such as sandboxes."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def machine_cpu_seconds() -> float:
    """Processor time so far of all cores of this machine, whoever used them."""
    times = psutil.cpu_times()
    return float(sum(times) - sum(getattr(times, name, 0.0) for name in _NOT_WORK))


def throughput(metrics: Mapping[str, float], devices: int) -> dict[str, float]:
    """Tokens of the batch by time, from a step's other metrics; nothing for an empty batch.

    `perf/throughput` is tokens per second and device over the whole step, `timing_per_token_ms/gen` milliseconds per
    sampled token, `timing_per_token_ms/update_actor` and those of other stages of the learner per token of the batch.
    """
    total, step = metrics.get("perf/total_num_tokens", 0.0), metrics["timing_s/step"]
    if not total:
        return {}
    sampled = metrics["response_length/mean"] * metrics["batch/rollouts"]
    return {
        "perf/time_per_step": step,
        "perf/throughput": total / step / devices,
        "timing_per_token_ms/gen": 1000 * metrics["timing_s/gen"] / sampled,
        **{
            f"timing_per_token_ms/{stage}": 1000 * metrics[f"timing_s/{stage}"] / total
            for stage in ("score", "update_critic", "update_actor")
            if f"timing_s/{stage}" in metrics
        },
    }


def step_line(step: int, metrics: Mapping[str, float]) -> str:
    """One line a step: `step:3 - critic/score/mean:0.5 - …`, as verl logs it."""
    return " - ".join([f"step:{step}", *(f"{name}:{_number(value)}" for name, value in sorted(metrics.items()))])


def _number(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) < 1e15 else repr(float(value))
