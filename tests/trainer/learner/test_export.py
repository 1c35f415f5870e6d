"""What an export refuses to write."""

import math

import pytest
import torch

from trainer.learner.export import ExportError, verify

BASE = {"embed.weight": torch.ones(4, 2), "head.weight": torch.ones(4, 2), "norm.weight": torch.ones(2)}
TIED = {"head.weight"}


def test_the_bases_own_weights_pass():
    verify(BASE, BASE, set())


def test_a_tied_weight_may_be_absent():
    weights = {name: tensor for name, tensor in BASE.items() if name != "head.weight"}
    verify(BASE, weights, TIED)
    with pytest.raises(ExportError, match=r"missing \['head.weight'\]"):
        verify(BASE, weights, set())


def test_a_missing_weight():
    with pytest.raises(ExportError, match=r"missing \['norm.weight'\]"):
        verify(BASE, {name: BASE[name] for name in ("embed.weight", "head.weight")}, TIED)


def test_an_unknown_weight():
    with pytest.raises(ExportError, match=r"unexpected \['lora.weight'\]"):
        verify(BASE, BASE | {"lora.weight": torch.ones(1)}, TIED)


def test_another_shape():
    with pytest.raises(ExportError, match=r"embed.weight has shape \(5, 2\), in the base model \(4, 2\)"):
        verify(BASE, BASE | {"embed.weight": torch.ones(5, 2)}, TIED)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers(value):
    with pytest.raises(ExportError, match=r"norm\.weight holds values that are not finite"):
        verify(BASE, BASE | {"norm.weight": torch.tensor([1.0, value])}, TIED)
