"""Which checkpoints stay."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Retention:
    """A checkpoint stays if any of these wants it. The newest always does.

    `best_metric` ranks those of which the run has recorded it; the others are not among the best.
    """

    keep_last: int = 2
    keep_every: int | None = None
    keep_best: int = 0
    best_metric: str | None = None
    best_is: Literal["max", "min"] = "max"

    def kept(self, steps: Collection[int], scores: Mapping[int, float]) -> dict[int, list[str]]:
        """The steps of `steps` that stay, in order, and why: `last`, `every`, `best`.

        Of equal scores the later one counts as better.
        """
        ordered = sorted(steps)
        last = ordered[-max(self.keep_last, 1) :]
        every = [step for step in ordered if self.keep_every and step % self.keep_every == 0]
        sign = 1.0 if self.best_is == "max" else -1.0
        ranked = sorted((step for step in ordered if step in scores), key=lambda step: (sign * scores[step], step))
        best = ranked[-self.keep_best :] if self.keep_best else []
        reasons = {step: [] for step in ordered}  # type: dict[int, list[str]]
        for reason, chosen in (("last", last), ("every", every), ("best", best)):
            for step in chosen:
                reasons[step].append(reason)
        return {step: why for step, why in reasons.items() if why}
