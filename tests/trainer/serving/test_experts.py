"""Fused experts are read back under the names and with the values that a checkpoint has, packed or not."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from trainer.serving import experts
from trainer.serving.names import expected_names, probe, stale_parameters

EXPERTS, HIDDEN, INNER, PADDED = 3, 12, 5, 8
STEM = "model.layers.0.mlp.experts"


class RoutedExperts(nn.Module):
    """The experts of a layer as vLLM holds them: plain, or as its CPU kernels pad and pack them."""

    ckpt_gate_proj_name, ckpt_up_proj_name, ckpt_down_proj_name = "gate_proj", "up_proj", "down_proj"
    local_num_experts = global_num_experts = EXPERTS

    def __init__(self, isa, dtype):
        super().__init__()
        inner = PADDED if isa else INNER
        self.w13_weight = nn.Parameter(torch.zeros(EXPERTS, 2 * inner, HIDDEN, dtype=dtype))
        self.w2_weight = nn.Parameter(torch.zeros(EXPERTS, HIDDEN, inner, dtype=dtype))
        self.moe_config = SimpleNamespace(hidden_dim_unpadded=HIDDEN, intermediate_size_per_partition_unpadded=INNER)
        packer = {"isa": isa, "process_weights_after_loading": self.pack} if isa else {}
        kernel = SimpleNamespace(fused_experts=SimpleNamespace(**packer))
        self.quant_method = SimpleNamespace(
            unquantized_backend=SimpleNamespace(name="CPU" if isa else "TRITON"), moe_kernel=kernel
        )
        self.isa = isa

    @torch.no_grad()
    def load(self, sent, packed=True):
        inner = self.w2_weight.shape[2]
        w13, w2 = torch.zeros_like(self.w13_weight), torch.zeros_like(self.w2_weight)
        for expert in range(EXPERTS):
            w13[expert, :INNER] = sent[f"{STEM}.{expert}.gate_proj.weight"]
            w13[expert, inner : inner + INNER] = sent[f"{STEM}.{expert}.up_proj.weight"]
            w2[expert, :, :INNER] = sent[f"{STEM}.{expert}.down_proj.weight"]
        self.w13_weight.copy_(w13)
        self.w2_weight.copy_(w2)
        if packed and self.isa:
            self.pack()

    @torch.no_grad()
    def pack(self, _layer=None):
        for weight in (self.w13_weight, self.w2_weight):
            weight.copy_(pack(weight, self.isa))


def pack(weight, isa):
    """Elements of each expert in another order, which depends on the shape alone."""
    size = weight[0].numel()
    order = torch.randperm(size, generator=torch.Generator().manual_seed(len(isa) * size))
    return weight.reshape(len(weight), -1)[:, order].view(weight.shape)


@pytest.fixture(params=[None, "vec"], ids=["plain", "packed"])
def isa(request, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", SimpleNamespace(cpu_prepack_moe_weight=pack))
    experts._places.cache_clear()
    yield request.param
    experts._places.cache_clear()


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def engine(request, isa):
    model = nn.Module()
    model.routed_experts = RoutedExperts(isa, request.param)
    tree = nn.ModuleDict(
        {"model": nn.ModuleDict({"layers": nn.ModuleDict({"0": nn.ModuleDict({"mlp": nn.Module()})})})}
    )
    tree["model"]["layers"]["0"]["mlp"].experts = model
    return tree


def checkpoint(dtype):
    torch.manual_seed(0)
    shapes = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
    return {
        f"{STEM}.{expert}.{name}.weight": torch.randn(shape, dtype=dtype)
        for expert in range(EXPERTS)
        for name, shape in shapes.items()
    }


def fused(engine):
    return next(module for module in engine.modules() if isinstance(module, RoutedExperts))


def stale(engine, sent, seed=1):
    return stale_parameters(engine, {name: probe(tensor, seed) for name, tensor in sent.items()}, seed)


def test_what_was_loaded_is_read_back(engine):
    module = fused(engine)
    sent = checkpoint(module.w2_weight.dtype)
    module.load(sent)
    assert expected_names(engine) == set(sent)
    for seed in range(4):
        assert stale(engine, sent, seed) == []


@pytest.mark.parametrize(("name", "parameter"), [("gate_proj", "w13"), ("up_proj", "w13"), ("down_proj", "w2")])
def test_one_matrix_of_one_expert_that_did_not_arrive_is_found(engine, name, parameter):
    module = fused(engine)
    sent = checkpoint(module.w2_weight.dtype)
    module.load(sent)
    sent[f"{STEM}.1.{name}.weight"] = sent[f"{STEM}.1.{name}.weight"] + 0.25
    assert stale(engine, sent) == [f"{STEM}.routed_experts.{parameter}_weight"]


def test_experts_that_were_reloaded_are_packed_anew(engine, isa):
    """vLLM leaves them as they were loaded; a kernel that expects them packed would compute with other weights."""
    module = fused(engine)
    sent = checkpoint(module.w2_weight.dtype)
    module.load(sent, packed=False)
    assert bool(stale(engine, sent)) == (isa is not None)
    experts.pack_reloaded_experts(engine)
    assert stale(engine, sent) == []


def test_experts_in_an_unknown_layout_are_refused_with_the_mend():
    module = RoutedExperts(None, torch.float32)
    module.quant_method.unquantized_backend.name = "FLASHINFER_TRTLLM"
    with pytest.raises(TypeError, match=r"w13_weight \(RoutedExperts, backend FLASHINFER_TRTLLM.*triton"):
        expected_names(nn.ModuleDict({"experts": module}))
    module.quant_method.unquantized_backend.name = "TRITON"
    module.local_num_experts = 1
    with pytest.raises(TypeError, match=r"1 of 3 experts here.*without expert parallelism"):
        expected_names(nn.ModuleDict({"experts": module}))
