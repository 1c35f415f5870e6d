"""Chat templates as real models have them, each with a byte-level tokenizer that knows its special tokens."""

import functools
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "templates"

_CHATML = (None, "<|im_end|>", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
_SPECIAL: dict[str, tuple[str | None, str, list[str]]] = {
    "chatml_tools": _CHATML,
    "qwen3": _CHATML,
    "smollm2": _CHATML,
    "llama3_tools": (
        "<|begin_of_text|>",
        "<|eot_id|>",
        ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"],
    ),
    "mistral_tools": (
        "<s>",
        "</s>",
        [
            *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ],
    ),
}
"""Beginning-of-text token, end-of-turn token and special tokens of each template."""

TEMPLATES = tuple(_SPECIAL)

_PLAIN = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
"""Tokens of their own that are text all the same, as Qwen3 has them."""

_MERGES = [("a", "b"), ("ab", "c"), ("b", "c"), ("{", '"'), ("Ġ", "a")]
"""With these a text has more than one spelling in ids, so decoding and encoding again may change them."""


@functools.cache
def template_tokenizer(name: str) -> Any:
    """The tokenizer of one of `TEMPLATES`: ids 0-255 are bytes, then merges, plain tokens and special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    bos, eos, special = _SPECIAL[name]
    vocabulary = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for left, right in _MERGES:
        vocabulary[left + right] = len(vocabulary)
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=_MERGES))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_tokens(_PLAIN)
    inner.add_special_tokens(special)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=bos, eos_token=eos, pad_token=eos, model_max_length=100_000
    )
    tokenizer.chat_template = (FOLDER / f"{name}.jinja").read_text()
    return tokenizer
