"""What can be known of a policy from its folder, without loading its weights."""

import json
import struct
from functools import cached_property
from pathlib import Path
from typing import Any

from trainer.model import BUILTIN, ModelError, check_model_folder

_EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_intermediate_size", "num_experts_per_tok")
_MAX_HEADER = 100 << 20
_QUANTISED = ("quantization_config", "compression_config")


def local_folder(path: str, root: Path) -> Path | None:
    """Where the policy lies, None while it has yet to be fetched or unpacked.

    Raises:
        ModelError: the path can only be a folder, and there is none.
    """
    if path == BUILTIN:
        folder = root / "models" / "smollm2-135m-instruct"
        return folder if (folder / "config.json").is_file() else None
    given = Path(path).expanduser()
    if given.is_dir():
        return given.resolve()
    if path.startswith((".", "/", "~")):
        raise ModelError(f"no folder {path!r}; give a folder with config.json, or a hub id like org/name")
    cached = root / "models" / path.replace("/", "--")
    return cached if (cached / "config.json").is_file() else None


class ModelFacts:
    """A model's folder, read as far as it is asked for.

    Raises:
        ModelError: it lacks config, weights, tokenizer or chat template.
    """

    def __init__(self, folder: Path) -> None:
        check_model_folder(folder)
        self.folder = folder

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json, whole."""
        return self._read("config.json")

    @cached_property
    def text_config(self) -> dict[str, Any]:
        """The part of config.json that describes the language model."""
        for name in ("text_config", "llm_config"):
            if isinstance(self.config.get(name), dict):
                return {**self.config, **self.config[name]}
        return self.config

    @cached_property
    def generation(self) -> dict[str, Any]:
        """generation_config.json; empty if there is none."""
        return self._read("generation_config.json") if (self.folder / "generation_config.json").is_file() else {}

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer; loading it takes seconds."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder, local_files_only=True)

    @cached_property
    def tensors(self) -> dict[str, int]:
        """Elements of each tensor, from the headers of the weight files."""
        sizes: dict[str, int] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            for name, entry in _header(path).items():
                if name != "__metadata__":
                    elements = 1
                    for dimension in entry["shape"]:
                        elements *= dimension
                    sizes[name] = elements
        return sizes

    @property
    def parameters(self) -> int:
        return sum(self.tensors.values())

    @property
    def largest_tensor(self) -> int:
        """Elements of the largest tensor."""
        return max(self.tensors.values(), default=0)

    @property
    def is_mixture(self) -> bool:
        """Whether it is a mixture of experts, by its own config."""
        kind = str(self.text_config.get("model_type", ""))
        named = any(self.text_config.get(key) for key in _EXPERT_KEYS)
        return kind.endswith("_moe") or kind.endswith("_moe_text") or named

    @property
    def quantised(self) -> bool:
        return any(self.config.get(key) for key in _QUANTISED)

    def number(self, name: str, default: int | None = None) -> int | None:
        """A whole number of the language model's config."""
        value = self.text_config.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    @property
    def kv_heads(self) -> int | None:
        return self.number("num_key_value_heads", self.number("num_attention_heads"))

    @property
    def head_dim(self) -> int | None:
        heads, hidden = self.number("num_attention_heads"), self.number("hidden_size")
        return self.number("head_dim", hidden // heads if hidden and heads else None)

    @property
    def rope(self) -> tuple[str | None, int | None]:
        """Kind of rotary embedding, and positions that the model had before it was scaled."""
        scaling = self.text_config.get("rope_scaling") or self.text_config.get("rope_parameters") or {}
        kind = scaling.get("rope_type") or scaling.get("type")
        named = "original_max_position_embeddings"
        original = scaling.get(named) or self.text_config.get(named) or self.number("max_position_embeddings")
        return kind, original

    @property
    def positions(self) -> int | None:
        """Longest sequence that the model is made for, scaled as its config says."""
        positions = self.number("max_position_embeddings")
        scaling = self.text_config.get("rope_scaling") or self.text_config.get("rope_parameters") or {}
        factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
        if (
            positions is None
            or not isinstance(factor, int | float)
            or scaling.get("rope_type") in ("llama3", "default")
        ):
            return positions
        return max(positions, int((original or positions) * factor))

    @property
    def end_ids(self) -> set[int]:
        """Ids at which the engine ends an answer: the tokenizer's, and those of the generation config."""
        named = self.generation.get("eos_token_id")
        ids = named if isinstance(named, list) else [named]
        return {int(i) for i in (*ids, self.tokenizer.eos_token_id) if i is not None}

    def _read(self, name: str) -> dict[str, Any]:
        try:
            values = json.loads((self.folder / name).read_text())
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.folder / name} cannot be read ({error}); copy it from the model again") from error
        if not isinstance(values, dict):
            raise ModelError(f"{self.folder / name} holds no table; copy it from the model again")
        return values


def _header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file: eight bytes of length, then JSON."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > _MAX_HEADER:
                raise ValueError(f"a header of {size} bytes")
            header = json.loads(file.read(size))
    except (OSError, ValueError, struct.error) as error:
        raise ModelError(f"{path} is no safetensors file ({error}); copy it from the model again") from error
    if not isinstance(header, dict):
        raise ModelError(f"{path} is no safetensors file; copy it from the model again")
    return header
