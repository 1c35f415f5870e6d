"""Which tensors an engine computes with: a tree built as vLLM builds one, fused, packed out of sight, tied."""

import pytest
import torch
from torch import nn

from trainer.serving.names import PROBED_COLUMNS, engine_parameters, expected_names, probe, stale_parameters

WIDTH, VOCABULARY, PADDED = 16, 20, 24


class PackedKernel:
    """Computes with a copy of the weight that it made when the weight was loaded, as CPU kernels do."""

    def load(self, module):
        module.packed_copy = module.weight.detach().clone()

    def apply(self, module, inputs, bias=None):
        return inputs @ module.packed_copy.T


class ParallelLinear(nn.Module):
    def __init__(self, rows, bias=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, WIDTH))
        self.register_parameter("bias", nn.Parameter(torch.randn(rows)) if bias else None)
        self.input_size_per_partition = WIDTH
        self.quant_method = PackedKernel()
        self.quant_method.load(self)


class VocabEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(PADDED, WIDTH))


class ParallelHead(nn.Module):
    """Tied to the embedding, but with a packed copy of its own."""

    def __init__(self, embedding):
        super().__init__()
        self.weight = embedding.weight
        self.embedding_dim = WIDTH
        self.quant_method = PackedKernel()
        self.quant_method.load(self)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))


class Engine(nn.Module):
    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}

    def __init__(self):
        super().__init__()
        self.embed_tokens = VocabEmbedding()
        self.attn = nn.Module()
        self.attn.qkv_proj = ParallelLinear(WIDTH + 4 + 4, bias=True)
        self.attn.o_proj = ParallelLinear(WIDTH)
        self.norm = Norm()
        self.lm_head = ParallelHead(self.embed_tokens)

    def sent(self):
        """The checkpoint that this engine holds."""
        qkv, bias = self.attn.qkv_proj.weight.detach(), self.attn.qkv_proj.bias.detach()
        parts = zip(("q_proj", "k_proj", "v_proj"), qkv.split([WIDTH, 4, 4]), bias.split([WIDTH, 4, 4]), strict=True)
        tensors = {}
        for name, weight, offset in parts:
            tensors |= {f"attn.{name}.weight": weight.clone(), f"attn.{name}.bias": offset.clone()}
        table = self.embed_tokens.weight.detach()[:VOCABULARY].clone()
        return tensors | {
            "attn.o_proj.weight": self.attn.o_proj.weight.detach().clone(),
            "norm.weight": self.norm.weight.detach().clone(),
            "embed_tokens.weight": table,
            "lm_head.weight": table.clone(),
        }


@pytest.fixture
def engine():
    torch.manual_seed(0)
    return Engine()


def stale(engine, tensors, seed=1):
    return stale_parameters(engine, {name: probe(tensor, seed) for name, tensor in tensors.items()}, seed)


def test_names_are_the_checkpoints_with_fused_ones_taken_apart_and_ties_under_both(engine):
    assert expected_names(engine) == set(engine.sent())
    assert {"lm_head.weight", "embed_tokens.weight", "attn.k_proj.bias"} <= expected_names(engine)
    fused = next(f for f in engine_parameters(engine) if f.module_name == "attn.qkv_proj" and f.parameter == "weight")
    assert fused.sources == ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight")


def test_what_was_sent_is_what_is_computed(engine):
    for seed in range(5):
        assert stale(engine, engine.sent(), seed) == []


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("attn.q_proj.weight", "attn.qkv_proj.weight"),
        ("attn.v_proj.weight", "attn.qkv_proj.weight"),
        ("attn.k_proj.bias", "attn.qkv_proj.bias"),
        ("attn.o_proj.weight", "attn.o_proj.weight"),
        ("norm.weight", "norm.weight"),
        ("embed_tokens.weight", "embed_tokens.weight"),
        ("lm_head.weight", "lm_head.weight"),
    ],
)
def test_a_tensor_that_did_not_arrive_is_named(engine, name, parameter):
    tensors = engine.sent()
    tensors[name] = tensors[name] + 1e-3
    assert stale(engine, tensors) == [parameter]


def test_a_stale_packed_head_is_found_although_the_parameter_is_new(engine):
    """The tied parameter was loaded through the embedding; the head's packed copy was left as it was."""
    tensors = engine.sent()
    for name in ("embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name] * 1.01
    with torch.no_grad():
        engine.embed_tokens.weight[:VOCABULARY] = tensors["embed_tokens.weight"]
    assert torch.equal(engine.lm_head.weight[:VOCABULARY], tensors["lm_head.weight"])
    assert stale(engine, tensors) == ["lm_head.weight"]
    engine.lm_head.quant_method.load(engine.lm_head)
    assert stale(engine, tensors) == []


def test_a_stale_packed_layer_is_found(engine):
    tensors = engine.sent()
    tensors["attn.o_proj.weight"] = tensors["attn.o_proj.weight"] + 1
    with torch.no_grad():
        engine.attn.o_proj.weight += 1
    assert stale(engine, tensors) == ["attn.o_proj.weight"]


def test_a_router_is_read_back_in_its_own_type(engine):
    engine.gate = ParallelLinear(4).double()
    engine.gate.input_size = engine.gate.__dict__.pop("input_size_per_partition")
    engine.gate.quant_method.load(engine.gate)
    tensors = engine.sent() | {"gate.weight": engine.gate.weight.detach().float()}
    with torch.no_grad():
        engine.gate.weight.copy_(tensors["gate.weight"])
    engine.gate.quant_method.load(engine.gate)
    assert stale(engine, tensors) == []
    tensors["gate.weight"] = tensors["gate.weight"] + 1e-3
    assert stale(engine, tensors) == ["gate.weight"]


def test_over_syncs_all_columns_are_probed(engine):
    tensor = torch.arange(WIDTH).repeat(3, 1)
    assert probe(tensor, 1).shape == (3, PROBED_COLUMNS)
    seen = {int(column) for seed in range(20) for column in probe(tensor, seed)[0]}
    assert seen == set(range(WIDTH))


def test_a_probe_is_a_copy():
    vector, matrix = torch.zeros(4), torch.zeros(2, 4)
    probes = [probe(vector, 0), probe(matrix, 0)]
    vector += 1
    matrix += 1
    assert all((p == 0).all() for p in probes)
