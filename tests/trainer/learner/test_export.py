"""What an export refuses to write."""

import math

import pytest
import torch
from safetensors.torch import save_file
from support.checkpoints import make_checkpoint

from trainer.learner.checkpoint import CheckpointError
from trainer.learner.export import ExportError, _require_saved, _weights, tensor_files, verify
from trainer.serving.buckets import TensorRecord, fingerprint

BASE = {"embed.weight": (4, 2), "head.weight": (4, 2), "norm.weight": (2,)}
TIED = {"head.weight"}


def test_the_bases_own_weights_pass():
    assert verify(BASE, BASE, set()) == []


def test_a_tied_weight_may_lie_in_one_place_or_two():
    once = {name: shape for name, shape in BASE.items() if name != "head.weight"}
    assert verify(once, BASE, TIED) == []
    with pytest.raises(ExportError, match=r"unexpected \['head.weight'\]"):
        verify(once, BASE, set())


def test_what_training_never_knew_is_told():
    assert verify(BASE | {"mtp.weight": (3,)}, BASE, set()) == ["mtp.weight"]


def test_a_weight_without_a_place():
    with pytest.raises(ExportError, match=r"unexpected \['lora.weight'\] \(1 in all\)"):
        verify(BASE, BASE | {"lora.weight": (1,)}, TIED)


def test_another_shape():
    with pytest.raises(ExportError, match=r"embed.weight has shape \(5, 2\), in the base model \(4, 2\)"):
        verify(BASE, BASE | {"embed.weight": (5, 2)}, TIED)


def test_nothing_in_common():
    with pytest.raises(ExportError, match="missing"):
        verify(BASE, {"head.weight2": (1,)}, {"head.weight2"})


def saved(tensors, dtype=torch.float32):
    return fingerprint(TensorRecord.of(name, tensor.to(dtype)) for name, tensor in tensors.items())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers(tmp_path, value):
    with pytest.raises(ExportError, match=r"norm\.weight holds values that are not finite"):
        _require_saved(make_checkpoint(tmp_path, 1), {"norm.weight": torch.tensor([1.0, value])})


def test_weights_that_are_not_those_that_were_saved(tmp_path):
    weights = {"embed.weight": torch.ones(4, 2), "norm.weight": torch.ones(2)}
    checkpoint = make_checkpoint(tmp_path, 1, fingerprint=saved(weights))
    _require_saved(checkpoint, weights)
    weights["norm.weight"][0] = 1 + 1e-6
    with pytest.raises(ExportError, match="the checkpoint is damaged"):
        _require_saved(checkpoint, weights)


def test_what_is_not_trained_is_exported_under_stage_1_too(tmp_path, monkeypatch):
    """DeepSpeed's own reader leaves it out there."""
    from deepspeed.utils import zero_to_fp32

    trained, frozen = torch.full((2,), 1 + 1e-4), torch.ones(3)
    checkpoint = make_checkpoint(tmp_path, 1)
    checkpoint.path.mkdir()
    module = {"trained": trained.bfloat16(), "frozen": frozen, "buffer": torch.zeros(1)}
    stored = {"module": module, "buffer_names": ["buffer"], "frozen_param_shapes": None}
    torch.save(stored, checkpoint.path / "mp_rank_00_model_states.pt")
    (checkpoint.path / "zero_pp_rank_0_mp_rank_00_optim_states.pt").touch()
    monkeypatch.setattr(
        zero_to_fp32, "get_fp32_state_dict_from_zero_checkpoint", lambda folder, tag: {"trained": trained}
    )
    weights = _weights(checkpoint)
    assert weights.keys() == {"trained", "frozen"}
    assert torch.equal(weights["trained"], trained) and torch.equal(weights["frozen"], frozen)


def test_only_files_of_the_index_count(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / "consolidated.safetensors")
    assert set(tensor_files(tmp_path)) == {"model-1.safetensors", "consolidated.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    assert tensor_files(tmp_path) == {"model-1.safetensors": {"a": ((2,), "F32")}}
    with pytest.raises(CheckpointError, match="no \\*\\.safetensors"):
        tensor_files(tmp_path / "missing")
