"""Numbers under verl's names."""

import math
from collections.abc import Mapping, Sequence


def distribution(name: str, values: Sequence[float]) -> dict[str, float]:
    """`name/mean`, `name/max` and `name/min`; nothing for no values."""
    if not values:
        return {}
    return {f"{name}/mean": sum(values) / len(values), f"{name}/max": max(values), f"{name}/min": min(values)}


def step_line(step: int, metrics: Mapping[str, float]) -> str:
    """One line a step: `step:3 - critic/score/mean:0.5 - …`, as verl logs it."""
    return " - ".join([f"step:{step}", *(f"{name}:{_number(value)}" for name, value in sorted(metrics.items()))])


def _number(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) < 1e15 else repr(float(value))
