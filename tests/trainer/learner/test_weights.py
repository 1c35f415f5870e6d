"""Which tensors a sync sends, and in which portions."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from support.plain import load_packed
from support.tiny import tiny_model

from trainer.learner.layout import Recipe
from trainer.learner.weights import WeightSource, full_tensors


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_packed(tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture
def gathered(monkeypatch):
    """ZeRO's gathering: which parameters were asked for together, and how many bytes are gathered now and at most."""
    import deepspeed

    state = SimpleNamespace(portions=[], now=0, peak=0)

    @contextmanager
    def gather(parameters, modifier_rank):
        nbytes = sum(p.numel() * p.element_size() for p in parameters)
        state.portions.append(parameters)
        state.now += nbytes
        state.peak = max(state.peak, state.now)
        try:
            yield
        finally:
            state.now -= nbytes

    monkeypatch.setattr(deepspeed.zero, "GatheredParameters", gather)
    return state


def source(model, bucket_bytes, dtype=torch.float32, layout=None):
    return WeightSource(SimpleNamespace(module=model), dtype, bucket_bytes, layout)


def test_a_tied_tensor_comes_under_both_names_but_is_gathered_once(model, gathered):
    names = [name for name, _ in source(model, 2**20)]
    assert set(names) == {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert len(set(names)) == len(names)
    place = names.index("model.embed_tokens.weight")
    assert names[place + 1] == "lm_head.weight", "one after the other, so that the bytes are written once"
    tied = sum(p is model.lm_head.weight for portion in gathered.portions for p in portion)
    assert tied == 1


def test_a_tied_tensor_is_the_same_object_also_when_cast(model):
    stream = dict(source(model, 2**20, torch.bfloat16))
    assert stream["lm_head.weight"] is stream["model.embed_tokens.weight"]


@pytest.mark.parametrize("bucket_bytes", [1, 40_000, 100_000])
def test_no_more_than_a_bucket_is_gathered_at_once_or_one_tensor(model, gathered, bucket_bytes):
    for _ in source(model, bucket_bytes):
        pass
    largest = max(p.numel() * p.element_size() for p in model.parameters())
    assert gathered.peak <= max(bucket_bytes, largest)
    assert gathered.now == 0
    assert len(gathered.portions) > 2


def test_one_rank_on_cpus_gathers_all_at_once_which_copies_nothing(model, gathered, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    names = [name for name, _ in source(model, 1)]
    assert len(gathered.portions) == 1 and len(names) == len(dict(model.named_parameters(remove_duplicate=False)))


def test_an_abandoned_stream_gives_its_bucket_back(model, gathered):
    stream = iter(source(model, 2**20))
    next(stream)
    assert gathered.now > 0
    stream.close()
    assert gathered.now == 0


def test_metadata_foretells_the_stream_without_gathering(model, gathered):
    weights = source(model, 40_000, torch.bfloat16)
    foretold = [(meta.name, meta.dtype, meta.shape) for meta in weights.metadata()]
    assert gathered.portions == []
    assert [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in weights] == foretold


def test_metadata_is_of_whole_tensors_where_a_rank_holds_a_shard():
    shard = torch.nn.Linear(1, 1, bias=False)
    shard.weight.ds_shape = torch.Size((6, 4))
    layout = [Recipe(("weight",), lambda tensors: [("top", tensors[0][:2]), ("rest", tensors[0][2:])])]
    weights = source(shard, 1, torch.bfloat16, layout)
    assert [(meta.name, meta.shape, meta.nbytes) for meta in weights.metadata()] == [
        ("top", (2, 4), 16),
        ("rest", (4, 4), 32),
    ]
    assert weights.largest_bytes == 32


def test_recipes_that_share_a_parameter_gather_it_once(gathered):
    module = torch.nn.Linear(3, 2)
    layout = [
        Recipe(("weight",), lambda tensors: [("weight", tensors[0])]),
        Recipe(("weight", "bias"), lambda tensors: [("sum", tensors[0].sum(1) + tensors[1])]),
    ]
    made = dict(source(module, 2**20, layout=layout))
    assert len(gathered.portions) == 1 and len(gathered.portions[0]) == 2
    assert torch.equal(made["sum"], (module.weight.sum(1) + module.bias).detach())


def test_copies_can_be_kept(model):
    kept = dict(full_tensors(SimpleNamespace(module=model), torch.float32, 40_000))
    with torch.no_grad():
        before = model.model.norm.weight.clone()
        model.model.norm.weight += 1
        assert torch.equal(kept["model.norm.weight"], before)
        model.model.norm.weight -= 1


def test_the_largest_tensor_is_measured_in_the_type_it_travels_in(model):
    engine = SimpleNamespace(module=model)
    assert WeightSource(engine, torch.bfloat16, 1).largest_bytes == 320 * 64 * 2
    assert WeightSource(engine, torch.float32, 1).largest_bytes == 320 * 64 * 4
