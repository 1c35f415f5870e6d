"""Parameters that are not trained."""

import re
from collections.abc import Sequence

import torch


class FreezeError(ValueError):
    """A pattern of `learner.freeze` cannot mean what was intended."""


def freeze(model: torch.nn.Module, patterns: Sequence[str]) -> list[str]:
    """Take the parameters in whose name a pattern is found out of training. Returns their names.

    A tied tensor has two names, and is frozen by either.

    Raises:
        FreezeError: a pattern is found in no name, or nothing is left to train.
    """
    named = list(model.named_parameters(remove_duplicate=False))
    frozen: list[str] = []
    for pattern in patterns:
        found = [(name, parameter) for name, parameter in named if re.search(pattern, name)]
        if not found:
            some = ", ".join(name for name, _ in named[:3])
            raise FreezeError(
                f"learner.freeze: {pattern!r} is found in no parameter's name; names are like {some}. "
                "Correct it, or leave it out"
            )
        for name, parameter in found:
            parameter.requires_grad_(False)
            frozen.append(name)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise FreezeError(f"learner.freeze: {list(patterns)} leave nothing to train; freeze less")
    return sorted(set(frozen))
