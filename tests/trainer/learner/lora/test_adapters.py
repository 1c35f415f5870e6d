"""Adapters: without effect at first, alone in training, and gone when they are switched off."""

from types import SimpleNamespace

import pytest
import torch
from support.checkpoints import make_checkpoint
from support.mixture import tiny_mixture
from support.plain import PlainEngine, load_packed, samples_like, sharpen
from support.tiny import tiny_model

from trainer.algorithms.config import AlgorithmConfig
from trainer.learner.config import LearnerConfig
from trainer.learner.errors import LearnerError
from trainer.learner.export import ExportError, _require_saved_adapters
from trainer.learner.layout import adapter_layout, checkpoint_layout, make_all
from trainer.learner.lora.adapters import LoraError, adapters_off, insert_adapters, scaling_of
from trainer.learner.lora.config import LoraConfig
from trainer.learner.lora.reference import LoraBase
from trainer.learner.packed_model import PackedModel
from trainer.learner.packing import pack_rows
from trainer.learner.rank import LearnerRank

SAMPLES = samples_like([(12, 2), (7, 1)])
SETTINGS = LoraConfig(rank=4, alpha=12.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return sharpen(tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module", params=["dense", "mixture"])
def either(request, folder, tmp_path_factory):
    return folder if request.param == "dense" else tiny_mixture(tmp_path_factory.mktemp("model") / "mixture")


def adapted(folder, settings=SETTINGS, moved=True):
    """A policy with adapters, which say something if `moved`."""
    model = load_packed(folder)
    insert_adapters(model, settings)
    if moved:
        move(model)
    return PackedModel(PlainEngine(model), model.lm_head)


def move(model):
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.normal_(std=0.3)


def logprobs(policy):
    return torch.cat([policy.forward(row) for row in pack_rows(SAMPLES, 2048)])


def parameters(policy):
    return dict(policy.engine.module.named_parameters(remove_duplicate=False))


def merged(policy):
    tensors = parameters(policy)
    with torch.no_grad():
        return dict(make_all(checkpoint_layout(policy.engine.module, tensors), tensors))


def test_adapters_start_without_effect_and_equal_on_all_ranks(either):
    plain = load_packed(either)
    want = logprobs(PackedModel(PlainEngine(plain), plain.lm_head))
    torch.manual_seed(1)
    one = adapted(either, moved=False)
    torch.manual_seed(2)
    two = adapted(either, moved=False)
    assert torch.equal(logprobs(one), want)
    for (name, left), right in zip(parameters(one).items(), parameters(two).values(), strict=True):
        assert torch.equal(left, right), name


def test_only_adapters_learn(either):
    policy = adapted(either)
    before = {name: p.detach().clone() for name, p in parameters(policy).items()}
    optimizer = torch.optim.SGD([p for p in policy.engine.module.parameters() if p.requires_grad], lr=0.1)
    logprobs(policy).sum().backward()
    optimizer.step()
    for name, parameter in parameters(policy).items():
        assert (".lora_" in name) != torch.equal(parameter, before[name]), name


def test_without_adapters_it_is_the_base_and_they_come_back(either):
    plain = load_packed(either)
    want = logprobs(PackedModel(PlainEngine(plain), plain.lm_head))
    policy = adapted(either)
    trained = logprobs(policy)
    assert (trained - want).abs().max() > 0.05
    reference = LoraBase(policy)
    assert torch.equal(logprobs(reference), want) and not logprobs(reference).requires_grad
    assert reference.engine is policy.engine, "no second copy"
    assert torch.equal(logprobs(policy), trained) and logprobs(policy).requires_grad
    with pytest.raises(RuntimeError), adapters_off(policy.engine.module):
        raise RuntimeError
    assert torch.equal(logprobs(policy), trained)


def test_merged_weights_are_a_checkpoint_of_the_same_policy(either):
    """Its names and shapes, what peft itself would merge, and the same log-probs; the base stays as it is."""
    policy = adapted(either)
    before = {name: p.detach().clone() for name, p in parameters(policy).items()}
    made = merged(policy)
    for name, parameter in parameters(policy).items():
        assert torch.equal(parameter, before[name]), name
    plain = load_packed(either)
    base = dict(make_all(checkpoint_layout(plain, own := dict(plain.named_parameters(remove_duplicate=False))), own))
    assert made.keys() == base.keys()
    changed = {name for name in made if not torch.equal(made[name], base[name])}
    assert changed and all("proj" in name for name in changed)
    want = logprobs(policy).detach()
    for module in policy.engine.module.modules():
        if hasattr(module, "merge") and hasattr(module, "lora_A"):
            module.merge()
            stem = next(name for name, m in policy.engine.module.named_modules() if m is module)
            torch.testing.assert_close(made[f"{stem}.weight"], module.base_layer.weight, atol=1e-6, rtol=0)
    torch.testing.assert_close(logprobs(policy), want, atol=1e-4, rtol=0)


def test_a_bias_beside_adapters_keeps_its_name():
    linear = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(3, 3)})
    linear.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(model_type="dense"))
    insert_adapters(linear, LoraConfig(rank=1))
    tensors = dict(linear.named_parameters())
    with torch.no_grad():
        made = dict(make_all(checkpoint_layout(linear, tensors), tensors))
    assert set(made) == {"q_proj.weight", "q_proj.bias"}


def test_adapters_alone_are_peft_s(either):
    from peft import get_peft_model_state_dict

    policy = adapted(either)
    tensors = parameters(policy)
    made = dict(make_all(adapter_layout(tensors), tensors))
    theirs = get_peft_model_state_dict(policy.engine.module)
    assert {name.removeprefix("base_model.model.") for name in made} == set(theirs)
    assert all(torch.equal(tensor, theirs[name.removeprefix("base_model.model.")]) for name, tensor in made.items())


def test_scaling(folder):
    assert scaling_of(adapted(folder).engine.module) == 3.0
    assert scaling_of(load_packed(folder)) is None


def test_named_layers_alone_get_adapters(folder):
    policy = adapted(folder, LoraConfig(target_modules=["q_proj", "down_proj"]))
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name in parameters(policy) if ".lora_" in name}
    assert layers == {"q_proj", "down_proj"}


def test_a_layer_that_is_not_there_is_an_error(folder):
    with pytest.raises(LoraError, match=r"is called 'query'; there are down_proj, gate_proj, k_proj"):
        insert_adapters(load_packed(folder), LoraConfig(target_modules=["q_proj", "query"]))


def test_experts_get_no_adapters(tmp_path):
    model = load_packed(tiny_mixture(tmp_path / "mixture"))
    with pytest.raises(LoraError, match=r"'gate_proj'; there are k_proj, o_proj, q_proj, v_proj; experts get none"):
        insert_adapters(model, LoraConfig(target_modules=["gate_proj"]))
    insert_adapters(model, LoraConfig())
    assert not any("mlp" in name for name, _ in model.named_parameters() if ".lora_" in name)


def test_rounding_hides_no_adapters_of_a_checkpoint(folder, tmp_path):
    """Merged in bf16 a small change is gone; what is restored, replayed or exported must have it all the same."""
    model = load_packed(folder, LearnerConfig())
    insert_adapters(model, SETTINGS)
    rank = LearnerRank(0, LearnerConfig(lora=SETTINGS), AlgorithmConfig())
    rank.adopt(PackedModel(PlainEngine(model), model.lm_head))
    saved = make_checkpoint(
        tmp_path, 1, dtype="bfloat16", fingerprint=rank.fingerprint(), adapters=rank.adapters_fingerprint()
    )
    rank._require_saved(saved)
    weights = dict(model.named_parameters())
    _require_saved_adapters(saved, weights)
    name = next(name for name in weights if ".lora_B." in name)
    with torch.no_grad():
        weights[name][0, 0] = 1e-7
    assert rank.fingerprint() == saved.fingerprint
    with pytest.raises(LearnerError, match="restored adapters have fingerprint"):
        rank._require_saved(saved)
    with pytest.raises(ExportError, match="the adapters in its shards have fingerprint"):
        _require_saved_adapters(saved, weights)


def test_merged_weights_are_the_same_on_every_device(folder):
    """Devices add up in another order each; a checkpoint's fingerprint must not depend on where it was computed."""
    model = adapted(folder).engine.module
    parameters = dict(model.named_parameters())
    recipes = [recipe for recipe in checkpoint_layout(model, parameters) if len(recipe.sources) == 3]
    assert recipes
    for recipe in recipes:
        base, down, up = (parameters[name].detach() for name in recipe.sources)
        order = torch.tensor([2, 0, 3, 1])
        ((_, here),), ((_, there),) = recipe.make([base, down, up]), recipe.make([base, down[order], up[:, order]])
        assert here.dtype == torch.float32 and torch.equal(here, there)
