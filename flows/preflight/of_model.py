"""Checks that need the model's folder."""

import functools
from collections.abc import Callable, Iterator

from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, fatal
from flows.preflight.model_facts import ModelFacts
from flows.preflight.registry import Function
from trainer.model import ModelError


def of_model(function: Callable[[Facts, ModelFacts], Iterator[Finding]]) -> Function:
    """A check that needs the model's folder: where it is missing or unusable, the check `model` has said so."""

    @functools.wraps(function)
    def checked(facts: Facts) -> Iterator[Finding]:
        try:
            model = facts.model
        except ModelError:
            return
        if model is None:
            return
        try:
            yield from function(facts, model)
        except ModelError as error:
            yield fatal("model.path", facts.config.model.path, str(error), "mend the folder")

    return checked
