"""What is said when engine and trainer disagree: a warning first, then an error with the likely cause."""

from collections.abc import Sequence

from trainer.fidelity.causes import Suspicion
from trainer.fidelity.config import FidelityConfig


class FidelityError(RuntimeError):
    """Engine and trainer have disagreed for too many steps in a row; more of them would train another policy."""


def warning(
    missed: Sequence[str], count: int, suspected: Sequence[Suspicion], scored: bool, config: FidelityConfig
) -> str:
    """A sentence for the log of a step that missed a limit; `scored` if the trainer's log-probs were looked at."""
    row = f"step {count} in a row" + (f", the run stops at {config.patience}" if config.patience else "")
    found = _likely(suspected) if suspected or scored else "The next step is scored, to find the cause."
    return f"fidelity: {'; '.join(missed)} ({row}). {found}"


def stop_message(
    missed: Sequence[str], step: int, count: int, suspected: Sequence[Suspicion], config: FidelityConfig
) -> str:
    """The text of a `FidelityError`."""
    row = f"for {count} steps in a row" if count > 1 else "in one step"
    lines = [
        f"engine and trainer disagree {row}, so training stops after step {step}: {'; '.join(missed)}.",
        _likely(suspected),
        *([f"{suspected[0].mend}."] if suspected else []),
        *(f"Less likely: {other.cause} ({other.evidence})." for other in suspected[1:]),
        "Started again, the run goes on and stops after its next unfaithful step; raise fidelity.patience, or unset "
        "it, to train all the same.",
    ]
    return "\n".join(lines)


def _likely(suspected: Sequence[Suspicion]) -> str:
    if not suspected:
        return "Likely cause: unknown; none of version, temperature, template, routing and numerics stands out."
    best = suspected[0]
    return f"Likely cause: {best.cause} ({best.evidence})."
