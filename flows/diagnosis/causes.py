"""Likely causes of what a verdict or a signature found, in order: each with what speaks for it, and what mends it."""

from collections.abc import Mapping
from typing import Any

from tasks.infra_causes import LikelyCause, infrastructure_causes

__all__ = ["LikelyCause", "fidelity_causes", "infrastructure_causes"]


def fidelity_causes(stored: Mapping[str, Any] | None) -> list[LikelyCause]:
    """The causes that `check_fidelity` found from the tokens, in its order; from fidelity.json."""
    found = stored.get("causes") if stored is not None else None
    causes = []
    for entry in found if isinstance(found, list) else []:
        if isinstance(entry, dict):
            cause, evidence, mend = (str(entry.get(name, "")) for name in ("cause", "evidence", "mend"))
            causes.append(LikelyCause(cause, evidence, mend))
    if not causes:
        causes.append(
            LikelyCause(
                "not known yet",
                "no cause was found from the tokens, or they were not scored in this step",
                "the step after an unfaithful one is scored: see its steps/step_N/fidelity.json",
            )
        )
    return causes
