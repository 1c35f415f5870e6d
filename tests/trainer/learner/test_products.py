"""Products of bfloat16 in fp32: exact but for the last rounding, with nothing kept in fp32, where CPUs gain from it."""

import pytest
import torch
from support.tiny import tiny_model
from torch import nn

from trainer.learner.config import LearnerConfig
from trainer.learner.engine import _load
from trainer.learner.products import Fp32Linear, attention_in_fp32, in_fp32, multiply_in_fp32


def layers(bias):
    """A layer that multiplies in fp32, and the same in fp64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 24, bias=bias, dtype=torch.bfloat16))
    multiply_in_fp32(model)
    exact = nn.Linear(48, 24, bias=bias, dtype=torch.float64)
    exact.load_state_dict(model[0].state_dict())
    return model[0], exact


ROUNDED = {"atol": 1e-6, "rtol": 2.0**-8, "check_dtype": False}
"""What rounding to bfloat16 once may change."""


@pytest.mark.parametrize("shape", [(1, 31), (31,), (2, 3, 5), (1, 0)])
def test_both_passes_are_rounded_once(shape):
    layer, exact = layers(bias=False)
    x = torch.randn(*shape, 48).bfloat16().requires_grad_()
    y = x.detach().double().requires_grad_()
    grad = torch.randn(*shape, 24).bfloat16()
    have, want = layer(x), exact(y)
    have.backward(grad)
    want.backward(grad.double())
    for found, wanted in ((have, want), (x.grad, y.grad), (layer.weight.grad, exact.weight.grad)):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, wanted, **ROUNDED)


def test_a_bias_is_added_and_trained():
    layer, exact = layers(bias=True)
    x = torch.randn(7, 48).bfloat16()
    have, want = layer(x), exact(x.double())
    torch.testing.assert_close(have, want, **ROUNDED)
    have.sum().backward()
    assert torch.equal(layer.bias.grad, torch.full((24,), 7.0).bfloat16())


def test_what_is_kept_for_the_backward_pass_is_in_bfloat16():
    layer, _ = layers(bias=False)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.dtype) or tensor, lambda kept: kept
    ):
        layer(torch.randn(7, 48).bfloat16().requires_grad_())
    assert kept == [torch.bfloat16] * 2


def test_frozen_weights_get_no_gradient():
    layer, _ = layers(bias=False)
    layer.requires_grad_(False)
    x = torch.randn(7, 48).bfloat16().requires_grad_()
    layer(x).sum().backward()
    assert layer.weight.grad is None and x.grad is not None


def test_attention_sees_fp32_and_says_what_it_was_given():
    seen = []

    def attend(module, query, key, value, mask, **arguments):
        seen.extend([query.dtype, key.dtype, value.dtype, arguments])
        return query + 1, None

    states = torch.ones(1, 2, 3, 4, dtype=torch.bfloat16)
    said, _ = attention_in_fp32(attend)(nn.Module(), states, states, states, None, spans="these")
    assert seen == [torch.float32] * 3 + [{"spans": "these"}]
    assert torch.equal(said, states + 1) and said.dtype == torch.bfloat16


MACHINES = {
    "without AMX": ({"architecture": "x86_64", "avx512_bf16": True, "amx_bf16": False}, True),
    "with AMX": ({"architecture": "x86_64", "avx512_bf16": True, "amx_bf16": True}, False),
    "of another kind": ({"architecture": "aarch64"}, False),
    "that tells nothing": ({}, False),
}


@pytest.mark.parametrize(("able", "faster"), MACHINES.values(), ids=list(MACHINES))
def test_the_machine_decides(able, faster, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    assert in_fp32(LearnerConfig()) is faster
    assert in_fp32(LearnerConfig(matmul_dtype="float32")) and not in_fp32(LearnerConfig(matmul_dtype="bfloat16"))
    assert not in_fp32(LearnerConfig(dtype="float32")) and not in_fp32(LearnerConfig(gpus_per_rank=1))


@pytest.mark.parametrize("products", ["float32", "bfloat16"])
def test_a_model_is_loaded_with_layers_that_multiply_so(products, tmp_path):
    model = _load(str(tiny_model(tmp_path / "tiny")), LearnerConfig(matmul_dtype=products))
    found = {type(module) for module in model.modules() if isinstance(module, nn.Linear)}
    assert found == {Fp32Linear if products == "float32" else nn.Linear}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
