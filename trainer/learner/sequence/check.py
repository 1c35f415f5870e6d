"""Whether a model's rows can be spread over ranks."""

from typing import Any

_BY_LENGTH = ("dynamic", "longrope")
"""Kinds of rotary embedding that depend on the last position that a pass sees, which ranks would not agree on."""


class SequenceError(ValueError):
    """Rows of this model cannot be spread over so many ranks; the message says what to set."""


def require_divisible(model_config: Any, sp_size: int) -> None:
    """Raises SequenceError unless the ranks of a sequence group can share a model's heads; the config is transformers'.

    Keys may have any number of heads: they are repeated (see `sequence.attention`).
    """
    if sp_size == 1:
        return
    text = model_config.get_text_config()
    heads = text.num_attention_heads
    if heads % sp_size:
        raise SequenceError(
            f"learner.sp_size is {sp_size}, which does not divide the model's {heads} attention heads; "
            f"use {', '.join(map(str, divisors(heads)))}"
        )
    rope = getattr(text, "rope_parameters", None) or {}
    # models with several kinds of layers have one entry for each
    kinds = {entry.get("rope_type") for entry in (rope, *rope.values()) if isinstance(entry, dict)}
    by_length = [kind for kind in _BY_LENGTH if kind in kinds]
    if by_length:
        raise SequenceError(
            f"learner.sp_size is {sp_size}, but the model's rotary embedding ({by_length[0]}) depends on how long a "
            "row is, which no rank of a group sees; set learner.sp_size: 1"
        )


def divisors(number: int) -> list[int]:
    """In rising order."""
    return [n for n in range(1, number + 1) if number % n == 0]
