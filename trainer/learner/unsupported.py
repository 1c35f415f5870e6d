"""What a language model's config says of it that the learner does not compute. Needs no torch: checks ask too."""

from collections.abc import Mapping
from typing import Any

_ATTENDING = {"full_attention", "sliding_attention"}
_BENDING = {"attn_logit_softcapping": None, "final_logit_softcapping": None, "logits_scaling": 1, "logit_scale": 1}
"""Settings of models that change scores or logits, and with what they do not."""


def unsupported(text_config: Mapping[str, Any]) -> str | None:
    """The first thing that is not supported, as the end of a sentence on the model; None if there is none."""
    other = sorted(set(text_config.get("layer_types") or ()) - _ATTENDING)
    if other:
        return f"has layers of {', '.join(other)}, which would see the rollouts beside theirs in a packed row"
    for name, harmless in _BENDING.items():
        value = text_config.get(name)
        if value is not None and value != harmless:
            return f"has {name} {value} in its config, which the learner's attention and log-probs do not compute"
    return None
