"""A step's metrics against the limits, and how many steps in a row have missed them."""

import math
from collections.abc import Iterable, Mapping

from trainer.fidelity.config import FidelityConfig

PEARSON = "training/rollout_actor_probs_pearson_corr"
MEAN_DIFF = "training/rollout_probs_diff_mean"
MAX_DIFF = "training/rollout_probs_diff_max"

_CONSTANT_SIDE = 0.01
"""Mean |difference| from which a correlation that does not exist is a fault: one side has the same probability for
every token, and not the one of the other side."""


def shortfalls(metrics: Mapping[str, float], config: FidelityConfig) -> list[str] | None:
    """What of a step misses its limit, in words; None for a step that measured nothing, as one without rollouts."""
    mean_diff = metrics.get(MEAN_DIFF)
    if mean_diff is None:
        return None
    found = []
    pearson, max_diff = metrics.get(PEARSON, math.nan), metrics.get(MAX_DIFF, 0.0)
    if pearson < config.threshold:
        found.append(f"Pearson of probabilities is {pearson:.4f}, below fidelity.threshold {config.threshold:g}")
    elif math.isnan(pearson) and mean_diff > _CONSTANT_SIDE:
        found.append(f"Pearson of probabilities does not exist, but they differ by {mean_diff:.3g} on average")
    if config.max_mean_diff is not None and mean_diff > config.max_mean_diff:
        found.append(
            f"mean |difference| of probabilities is {mean_diff:.3g}, above "
            f"fidelity.max_mean_diff {config.max_mean_diff:g}"
        )
    if config.max_diff is not None and max_diff > config.max_diff:
        found.append(
            f"largest |difference| of probabilities is {max_diff:.3g}, above fidelity.max_diff {config.max_diff:g}"
        )
    return found


def steps_below(newest_first: Iterable[Mapping[str, float]], config: FidelityConfig) -> int:
    """How many of the newest steps missed a limit, without a good one in between.

    Steps that measured nothing neither count nor end the row.
    """
    count = 0
    for metrics in newest_first:
        found = shortfalls(metrics, config)
        if found == []:
            break
        count += found is not None
    return count
