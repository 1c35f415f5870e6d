"""From the shards of a checkpoint to a Hugging Face folder that any server loads, proved to be the same model.

The folder is laid out as the model that the run began with: the same files with the same keys, shapes and types, its
config, generation config, tokenizer and chat template byte for byte. Weights are those that the learner computed with
and replicas served, in the learner's precision, in which adapters are merged and experts come apart. Tensors that
training never knew (such as layers for multi-token prediction) are carried over. A critic is left out.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.learner.checkpoint import Checkpoint, CheckpointError
from trainer.learner.layout import adapter_layout, make_all, recipes
from trainer.learner.moe.mixtures import MIXTURES

REPORT = "testgrad_export.json"
"""Written last: what the folder holds, and how it was checked."""

LARGEST_DIFFERENCE = {"float32": 1e-3, "bfloat16": 0.15}
"""Nats by which log-probs may differ in the mean: what rounding and another order of sums can do, and then some."""

_COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab.*",
    "merges.txt",
    "*.tiktoken",
    "preprocessor_config.json",
    "processor_config.json",
    "*.py",
    "LICENSE*",
)

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


class ExportError(ValueError):
    """The weights are not a model of the base's shape, or the exported folder does not compute what they do."""


@dataclass(frozen=True)
class ExportReport:
    """What was exported. Differences are in nats, of log-probs to those that the learner itself gave."""

    step: int
    fingerprint: str
    tensors: int
    parameters: int
    bytes: int
    carried_over: list[str]
    mean_difference: float
    largest_difference: float


def export_checkpoint(path: Path, target: Path, progress: Progress = lambda done, total: None) -> Path:
    """Write the policy of a checkpoint to the folder `target`, complete or not at all. Returns it.

    `read_report(target)` then says what it holds.

    Raises:
        CheckpointError: `path` is no complete checkpoint, or its base model is gone.
        ExportError: the weights are not those that were saved, keys or shapes differ from the base's, a value is not
            finite, the exported folder gives other log-probs than the learner did, or `target` exists.
    """
    checkpoint, base = _open(path, target)
    weights = _weights(checkpoint)
    _require_saved_adapters(checkpoint, weights)
    made = dict(make_all(recipes(weights, _mixture(base), checkpoint.scaling), weights))
    del weights
    _require_saved(checkpoint, made)
    sources = tensor_files(base)
    shapes = {name: shape for names in sources.values() for name, (shape, _) in names.items()}
    carried = verify(shapes, {name: tuple(tensor.shape) for name, tensor in made.items()}, _tied(base))
    scratch = target.with_name(f".{target.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        written = _write(scratch, base, sources, made, progress)
        parameters = sum(tensor.numel() for tensor in made.values())
        del made
        _copy_rest(base, scratch)
        differences = _spot_check(scratch, checkpoint, sources)
        report = ExportReport(
            step=checkpoint.step,
            fingerprint=checkpoint.fingerprint,
            tensors=len(shapes),
            parameters=parameters,
            bytes=written,
            carried_over=carried,
            mean_difference=float(differences.mean()),
            largest_difference=float(differences.max()),
        )
        (scratch / REPORT).write_text(json.dumps(asdict(report), indent=1))
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def export_adapters(path: Path, target: Path) -> Path:
    """Write the adapters of a checkpoint alone, as peft's folder for them, to `target`. Returns it.

    Raises:
        CheckpointError: `path` is no complete checkpoint.
        ExportError: it has no adapters, the weights are not those that were saved, or `target` exists.
    """
    import peft
    from safetensors.torch import save_file

    checkpoint, base = _open(path, target)
    if checkpoint.scaling is None:
        raise ExportError(f"{path} has no adapters: learner.lora was not set; leave --adapters out")
    weights = _weights(checkpoint)
    _require_saved_adapters(checkpoint, weights)
    _require_saved(checkpoint, dict(make_all(recipes(weights, _mixture(base), checkpoint.scaling), weights)))
    adapters = {name: tensor.contiguous() for name, tensor in make_all(adapter_layout(weights), weights)}
    widths = {tensor.shape[0] for name, tensor in adapters.items() if ".lora_A." in name}
    layers = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in adapters})
    (width,) = widths
    settings = peft.LoraConfig(
        r=width,
        lora_alpha=checkpoint.scaling * width,  # type: ignore[arg-type]  # peft only divides by it
        target_modules=layers,
        task_type="CAUSAL_LM",
        base_model_name_or_path=checkpoint.model_path,
        inference_mode=True,
    )
    scratch = target.with_name(f".{target.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        save_file(adapters, scratch / "adapter_model.safetensors", metadata={"format": "pt"})
        settings.save_pretrained(str(scratch))
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def read_report(folder: Path) -> ExportReport | None:
    """What an exported folder holds; None if it is none of ours."""
    path = folder / REPORT
    return ExportReport(**json.loads(path.read_text())) if path.is_file() else None


def verify(base: Mapping[str, tuple[int, ...]], made: Mapping[str, tuple[int, ...]], tied: set[str]) -> list[str]:
    """Compare keys and shapes with the base model's files. Returns the keys of the base that training never knew.

    `tied` are names under which a weight may lie a second time.

    Raises:
        ExportError: a weight of the checkpoint has no place in the base's files, or another shape there; or none has.
    """
    unexpected = sorted(made.keys() - base.keys() - tied)
    if unexpected:
        raise ExportError(f"keys differ from the base model's: unexpected {unexpected[:5]} ({len(unexpected)} in all)")
    for name, shape in made.items():
        if name in base and base[name] != shape:
            raise ExportError(f"{name} has shape {shape}, in the base model {base[name]}")
    unknown = sorted(base.keys() - made.keys())
    if len(unknown) == len(base):
        raise ExportError(f"keys differ from the base model's: missing {unknown[:5]} ({len(unknown)} in all)")
    return unknown


def tensor_files(folder: Path) -> dict[str, dict[str, tuple[tuple[int, ...], str]]]:
    """Shape and type of each tensor in the *.safetensors files of a model, by file; only those that its index names.

    Raises:
        CheckpointError: there is none.
    """
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        raise CheckpointError(f"{folder} has no *.safetensors; save the base model with save_pretrained")
    found = {}
    for name in names:
        with safe_open(folder / name, "pt") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
            found[name] = {key: (tuple(part.get_shape()), part.get_dtype()) for key, part in slices.items()}
    return found


def _open(path: Path, target: Path) -> tuple[Checkpoint, Path]:
    checkpoint = Checkpoint.open(path)
    checkpoint.require_whole()
    base = Path(checkpoint.model_path)
    if not (base / "config.json").is_file():
        raise CheckpointError(
            f"{path}: its base model {base} is gone; put it back, the export takes config and tokenizer from it"
        )
    if target.exists():
        raise ExportError(f"{target} exists; choose another folder, or remove it")
    return checkpoint, base


def _weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The policy's parameters, whole and in the learner's precision, under its names; tied ones under each."""
    from deepspeed.utils import logger, zero_to_fp32

    logger.setLevel("ERROR")
    path = checkpoint.path
    (states,) = sorted(path.glob("*mp_rank_00_model_states.pt"))[:1]
    stored = torch.load(states, map_location="cpu", mmap=True, weights_only=False)
    buffers = set(stored["buffer_names"] or ())
    if any(path.glob("*_optim_states.pt")):
        # it prints what it does; not by redirection, for other threads print as well
        zero_to_fp32.print, zero_to_fp32.tqdm = lambda *text: None, lambda files, **_: files
        weights = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(str(path.parent), tag=path.name)
        if stored["frozen_param_shapes"] is None:  # stage 1 keeps what is not trained with the module alone
            weights = stored["module"] | weights
    else:  # stage 0 shares nothing out
        weights = stored["module"]
    return {name: tensor.to(_type(checkpoint)) for name, tensor in weights.items() if name not in buffers}


def _require_saved(checkpoint: Checkpoint, made: Mapping[str, torch.Tensor]) -> None:
    """Raises ExportError unless these are, bit by bit, the weights that the learner had."""
    from trainer.serving.buckets import TensorRecord, fingerprint

    for name, tensor in made.items():
        if not torch.isfinite(tensor).all():
            raise ExportError(f"{name} holds values that are not finite; the run diverged before this checkpoint")
    found = fingerprint(
        TensorRecord.of(name, tensor.to(_type(checkpoint)).contiguous()) for name, tensor in made.items()
    )
    _require_same("weights", found, checkpoint.fingerprint, checkpoint)


def _require_saved_adapters(checkpoint: Checkpoint, weights: dict[str, torch.Tensor]) -> None:
    """Raises ExportError unless the adapters are, bit by bit, those that the learner had; safe if there are none."""
    from trainer.serving.buckets import TensorRecord, fingerprint

    if checkpoint.adapters is None:
        return
    made = make_all(adapter_layout(weights), weights)
    found = fingerprint(TensorRecord.of(name, tensor.contiguous()) for name, tensor in made)
    _require_same("adapters", found, checkpoint.adapters, checkpoint)


def _require_same(what: str, found: str, saved: str, checkpoint: Checkpoint) -> None:
    if found != saved:
        raise ExportError(
            f"{checkpoint.path}: the {what} in its shards have fingerprint {found[:12]}, saved were "
            f"{saved[:12]}; the checkpoint is damaged, take another"
        )


def _write(
    folder: Path,
    base: Path,
    sources: Mapping[str, Mapping[str, tuple[tuple[int, ...], str]]],
    made: Mapping[str, torch.Tensor],
    progress: Progress,
) -> int:
    """Write the base's files anew with these weights. Returns the bytes written."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    total, done = sum((base / name).stat().st_size for name in sources), 0
    for name, keys in sources.items():
        with safe_open(base / name, "pt") as file:
            tensors = {}
            for key in keys:
                stored = file.get_tensor(key)
                # cloned, for safetensors takes no two tensors of one memory
                tensors[key] = made[key].to(stored.dtype).clone().contiguous() if key in made else stored
            save_file(tensors, folder / name, metadata=file.metadata() or {"format": "pt"})
        done += (folder / name).stat().st_size
        progress(done, total)
    index = base / "model.safetensors.index.json"
    if index.is_file():
        shutil.copyfile(index, folder / index.name)
    return done


def _copy_rest(base: Path, folder: Path) -> None:
    for pattern in _COPIED:
        for path in sorted(base.glob(pattern)):
            if path.is_dir():
                shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
            else:
                shutil.copyfile(path, folder / path.name)


def _spot_check(folder: Path, checkpoint: Checkpoint, sources: Mapping[str, Any]) -> np.ndarray:
    """Load the folder as anybody would, and compare its log-probs with what the learner said.

    Raises:
        ExportError: they differ by more than rounding.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from trainer.learner.probe import differences

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=_type(checkpoint))
    if shown:
        logging.enable_progress_bar()
    found = differences(model.eval(), checkpoint.probe)
    exact = all(kind in ("F32", "I64") for keys in sources.values() for _, kind in keys.values())
    allowed = LARGEST_DIFFERENCE[checkpoint.dtype if exact else "bfloat16"]
    if not found.mean() <= allowed:
        raise ExportError(
            f"the exported model gives other log-probs than the learner did: they differ by {found.mean():.3g} nats "
            f"in the mean and by {found.max():.3g} at most, {allowed:g} in the mean would be rounding; "
            f"nothing was written, {checkpoint.path} is as it was"
        )
    return found


def _mixture(base: Path) -> Any:
    from transformers import AutoConfig

    return MIXTURES.get(AutoConfig.from_pretrained(base).get_text_config().model_type)


def _tied(base: Path) -> set[str]:
    from transformers import AutoConfig

    tied = AutoConfig.from_pretrained(base).get_text_config().tie_word_embeddings
    return {"lm_head.weight", "model.embed_tokens.weight"} if tied else set()


def _type(checkpoint: Checkpoint) -> torch.dtype:
    kind = getattr(torch, checkpoint.dtype)
    assert isinstance(kind, torch.dtype)
    return kind
