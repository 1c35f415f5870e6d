"""A model that does not compute a rollout in a row as it computes it alone is refused before anything is trained."""

import json

import pytest
import torch
from support.mixture import tiny_mixture
from support.plain import IN_FP32, PlainEngine, load_packed, sharpen
from support.tiny import tiny_model
from transformers import Gemma2Config, GraniteConfig, Lfm2Config, Qwen3NextConfig

from trainer.learner.config import LearnerConfig
from trainer.learner.engine import _load
from trainer.learner.errors import LearnerError
from trainer.learner.packable import require_packable
from trainer.learner.packed_model import PackedModel
from trainer.learner.packing import Span
from trainer.learner.unsupported import unsupported


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {"dense": sharpen(tiny_model(root / "dense")), "mixture": tiny_mixture(root / "mixture")}


def packed(folder, config=IN_FP32):
    model = load_packed(folder, config)
    return PackedModel(PlainEngine(model), model.lm_head)


@pytest.mark.parametrize("kind", ["dense", "mixture"])
@pytest.mark.parametrize(
    "config",
    [IN_FP32, LearnerConfig(matmul_dtype="bfloat16"), LearnerConfig(matmul_dtype="float32")],
    ids=["fp32", "bf16", "bf16 in fp32"],
)
def test_models_of_attention_pass_and_are_as_they_were(folders, kind, config):
    model = packed(folders[kind], config)
    require_packable(model)
    assert model.engine.module.training
    assert not model.head._forward_hooks and not model.engine.module._forward_hooks


def scaled(module, inputs, output):
    output.logits = output.logits / 8
    return output


def carried(module, inputs, output):
    """What a recurrence does: a token's state goes into the next ones'."""
    return output + 0.1 * output.cumsum(1)


@pytest.mark.parametrize(
    ("place", "hook", "message"),
    [("", scaled, "changes what its output head says"), ("model.layers.0.mlp", carried, "what stands beside it")],
    ids=["scaled logits", "a state that is carried on"],
)
def test_what_would_train_another_policy_is_refused(folders, place, hook, message):
    model = packed(folders["dense"])
    model.engine.module.get_submodule(place).register_forward_hook(hook)
    with pytest.raises(LearnerError, match=message):
        require_packable(model)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Qwen3NextConfig(num_hidden_layers=4), "layers of linear_attention, which would see the rollouts beside"),
        (Lfm2Config(num_hidden_layers=2, layer_types=["conv", "full_attention"]), "layers of conv"),
        (Gemma2Config(), "has attn_logit_softcapping 50.0"),
        (GraniteConfig(logits_scaling=8.0), "has logits_scaling 8.0"),
        (GraniteConfig(), None),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "model_type") else "",
)
def test_a_config_tells(config, reason):
    told = unsupported(config.to_dict())
    assert told is None if reason is None else reason in told


def test_such_a_model_is_not_loaded(tmp_path):
    folder = tiny_model(tmp_path / "capped")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"final_logit_softcapping": 30.0}))
    with pytest.raises(LearnerError, match=r"capped has final_logit_softcapping 30\.0 in its config, .* train another"):
        _load(str(folder), LearnerConfig())


def test_the_policy_that_samples_has_no_dropout(tmp_path):
    folder = tiny_model(tmp_path / "dropping")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.5}))
    model = _load(str(folder), LearnerConfig()).train()
    ids = torch.arange(40)[None]
    arguments = {"position_ids": ids, "use_cache": False, "spans": (Span(0, 40, 0, 0),)}
    assert torch.equal(*(model(input_ids=ids, **arguments).logits for _ in range(2)))
