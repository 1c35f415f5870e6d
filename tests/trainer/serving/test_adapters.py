"""A sync of adapters alone: what the engine's slot holds is compared with what was sent, layer by layer."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save

from trainer.serving.adapters import NUMBER, RANKS, room_for, verified_adapters, write_adapters
from trainer.serving.buckets import TensorRecord, WeightSyncError, fingerprint
from trainer.serving.config import ServingConfig

LAYER = "model.layers.0"
WIDTH, RANK, ROOM, SCALING = 6, 2, 8, 1.5


def sent(dtype=torch.float32, layers=("q_proj", "v_proj", "o_proj")):
    torch.manual_seed(0)
    tensors = {}
    for layer in layers:
        stem = f"base_model.model.{LAYER}.{layer}"
        tensors[f"{stem}.lora_A.weight"] = torch.randn(RANK, WIDTH, dtype=dtype)
        tensors[f"{stem}.lora_B.weight"] = torch.randn(WIDTH, RANK, dtype=dtype)
    return tensors


def engine(tensors, slot=1):
    """vLLM's manager, whose second slot holds these adapters; q, k and v are one layer there."""

    def layer(*parts):
        stacks = []
        for part in parts:
            a, b = torch.zeros(2, 1, ROOM, WIDTH), torch.zeros(2, 1, WIDTH + 3, ROOM)
            name = f"base_model.model.{LAYER}.{part}"
            if f"{name}.lora_A.weight" in tensors:
                a[slot, 0, :RANK] = tensors[f"{name}.lora_A.weight"]
                b[slot, 0, :WIDTH, :RANK] = tensors[f"{name}.lora_B.weight"] * SCALING
            stacks.append((a, b))
        return SimpleNamespace(lora_a_stacked=tuple(a for a, _ in stacks), lora_b_stacked=tuple(b for _, b in stacks))

    parts = ["q_proj", "k_proj", "v_proj"]
    return SimpleNamespace(
        lora_index_to_id=[None, NUMBER],
        packed_modules={f"{LAYER}.qkv_proj": [f"{LAYER}.{part}" for part in parts]},
        modules={
            f"{LAYER}.qkv_proj": layer(*parts),
            f"{LAYER}.o_proj": layer("o_proj"),
            "lm_head": SimpleNamespace(lora_a_stacked=torch.zeros(2, 1, ROOM, WIDTH)),
        },
    )


@pytest.fixture
def folder(tmp_path):
    write_adapters(tmp_path / "adapters", save(sent()), SCALING)
    return tmp_path / "adapters"


def test_the_fingerprint_is_that_of_what_was_sent(folder):
    tensors = sent()
    want = fingerprint(TensorRecord.of(name, tensor) for name, tensor in tensors.items())
    assert verified_adapters(engine(tensors), folder, whole=True) == want


@pytest.mark.parametrize("kind", ["lora_A", "lora_B"])
@pytest.mark.parametrize("layer", ["q_proj", "v_proj", "o_proj"])
def test_another_value_in_the_slot_is_named(folder, layer, kind):
    tensors = sent()
    name = f"base_model.model.{LAYER}.{layer}.{kind}.weight"
    tensors[name][0, 0] += 1e-4
    with pytest.raises(WeightSyncError, match=f"another {name} than was sent"):
        verified_adapters(engine(tensors), folder, whole=True)
    verified_adapters(engine(tensors), folder, whole=False)


def test_what_an_earlier_adapter_left_is_found(folder):
    manager = engine(sent(layers=("q_proj", "k_proj", "v_proj", "o_proj")) | sent())
    with pytest.raises(WeightSyncError, match=r"another .*k_proj.lora_A.weight"):
        verified_adapters(manager, folder, whole=True)


def test_an_adapter_without_a_layer_is_named(folder):
    manager = engine(sent())
    del manager.modules[f"{LAYER}.o_proj"]
    for whole in (True, False):
        with pytest.raises(WeightSyncError, match=r"engine has none for: .*o_proj"):
            verified_adapters(manager, folder, whole)


def test_peft_reads_the_folder(folder):
    from peft import PeftConfig

    settings = PeftConfig.from_pretrained(str(folder))
    assert (settings.r, settings.lora_alpha) == (RANK, SCALING * RANK)
    assert set(settings.target_modules) == {"q_proj", "v_proj", "o_proj"}


def test_engines_make_room_in_steps():
    assert [room_for(rank) for rank in (1, 2, 8, 17, 512)] == [1, 8, 8, 32, 512]
    assert ServingConfig(lora_rank=RANKS[-1]).lora_rank == 512


def test_colocated_replicas_serve_whole_weights():
    with pytest.raises(ValueError, match=r"lora_rank is 8.*learner.lora.sync: merged"):
        ServingConfig(lora_rank=8, colocated=True)
