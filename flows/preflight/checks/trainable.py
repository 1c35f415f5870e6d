"""What of the policy is trained: patterns that freeze, and layers that get adapters, against its own names."""

import re
from collections.abc import Iterator

from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, fatal, ok, warn
from flows.preflight.model_facts import ModelFacts
from flows.preflight.of_model import of_model
from flows.preflight.registry import check


@check("trainable")
@of_model
def trainable(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    """Every pattern of learner.freeze is found in a name and leaves something; every adapter has its layer."""
    learner = facts.config.learner
    names = _names(model)
    told = [*_frozen(model, names, learner.freeze), *_adapted(facts, model, names)]
    yield from told
    if not told:
        yield ok("learner", "", f"all {model.parameters / 1e6:,.0f} M parameters are trained")


def _frozen(model: ModelFacts, names: list[str], patterns: tuple[str, ...]) -> Iterator[Finding]:
    if not patterns:
        return
    shown = ", ".join(names[:3])
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in names):
            why = f"is found in no name of the model's {len(names)} tensors, which are like {shown}"
            yield _unknown(model, "learner.freeze", pattern, why)
    frozen = [name for name in names if any(re.search(pattern, name) for pattern in patterns)]
    if len(frozen) == len(names):
        yield fatal("learner.freeze", list(patterns), "leaves nothing to train", "freeze less")
    else:
        yield ok("learner.freeze", list(patterns), f"takes {len(frozen)} of {len(names)} tensors out of training")


def _adapted(facts: Facts, model: ModelFacts, names: list[str]) -> Iterator[Finding]:
    lora = facts.config.learner.lora
    if lora is None:
        return
    if lora.target_modules == "all-linear":
        yield ok("learner.lora.target_modules", lora.target_modules, f"get adapters of rank {lora.rank}")
        return
    layers = {name.split(".")[-2] for name in names if name.count(".") and name.endswith(".weight")}
    for target in lora.target_modules:
        if target not in layers:
            why = f"is none of the model's layers, which are {', '.join(sorted(layers))}"
            yield _unknown(model, "learner.lora.target_modules", target, why)
        else:
            yield ok("learner.lora.target_modules", target, f"gets adapters of rank {lora.rank}")


def _unknown(model: ModelFacts, field: str, value: str, why: str) -> Finding:
    """A name that is not there. Experts may be fused when they are loaded, and then have names that no file has."""
    if model.is_mixture:
        return warn(field, value, f"{why}; experts have other names once they are loaded", "make sure that it fits")
    return fatal(field, value, why, "correct it, or leave it out")


def _names(model: ModelFacts) -> list[str]:
    tied = model.text_config.get("tie_word_embeddings") and "lm_head.weight" not in model.tensors
    return sorted([*model.tensors, *(["lm_head.weight"] if tied else [])])
