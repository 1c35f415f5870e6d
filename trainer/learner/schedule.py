"""The learning rate of an update, from its number alone: nothing of it need be saved or restored."""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def lr_factor(update: int, schedule: Schedule, warmup: int, total: int, floor: float) -> float:
    """What the learning rate is multiplied by in `update`, from 1; above 0 for any arguments.

    It rises linearly over `warmup` updates to 1, then stays or falls to `floor` in update `total` and stays there. With
    a `total` that is not known, -1, nothing says how fast to fall: it stays.
    """
    if update <= warmup:
        return max(update, 1) / warmup
    if schedule == "constant" or total <= 0:
        return 1.0
    progress = min((update - warmup - 1) / max(total - warmup - 1, 1), 1.0)
    falling = 0.5 * (1 + math.cos(math.pi * progress)) if schedule == "cosine" else 1 - progress
    return floor + (1 - floor) * falling
