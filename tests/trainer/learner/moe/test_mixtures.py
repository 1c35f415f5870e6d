"""How experts lie in checkpoints: as transformers itself writes them."""

import pytest
import torch
from safetensors.torch import load_file
from support.mixture import FAMILIES, tiny_mixture
from support.plain import load_packed, load_plain
from support.tiny import tiny_model

from trainer.learner.layout import checkpoint_layout, make_all
from trainer.learner.moe.mixtures import MIXTURES, mixture_of


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layout_is_that_of_the_checkpoint(tmp_path, family):
    """Every name and every value, with nothing left over."""
    folder = tiny_mixture(tmp_path / family, family)
    saved = load_file(folder / "model.safetensors")
    parameters = dict(load_packed(folder).named_parameters(remove_duplicate=False))
    made = dict(make_all(checkpoint_layout(load_plain(folder), parameters), parameters))
    assert made.keys() == saved.keys()
    assert any(".experts.7." in name for name in made), "or there were no experts to take apart"
    for name, tensor in made.items():
        assert torch.equal(tensor, saved[name]), name


def test_families_that_are_known_are_the_tested_ones():
    assert set(MIXTURES) == set(FAMILIES)


def test_a_dense_model_is_left_as_it_is(tmp_path):
    model = load_packed(tiny_model(tmp_path / "dense"))
    assert mixture_of(model) is None
    parameters = dict(model.named_parameters(remove_duplicate=False))
    made = dict(make_all(checkpoint_layout(model, parameters), parameters))
    assert made.keys() == parameters.keys() and all(made[name] is parameters[name] for name in made)
