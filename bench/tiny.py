"""A byte-level tokenizer and a tiny random model: real ones, for benches and tests that need no good one."""

from pathlib import Path
from typing import Any

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Prints every message as it is."""

SMOLLM = (
    "{% if messages[0].role != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}" + CHATML
)
"""CHATML with a default system message, as SmolLM2 and Qwen2.5 have it."""

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}"
    "{% if loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content.split('</think>')[-1].strip() }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Rewrites answers once they are history, as Qwen3's template does."""


def tiny_tokenizer(template: str | None = CHATML, merges: list[tuple[str, str]] | None = None) -> Any:
    """A byte-level tokenizer with ChatML tokens; ids 0-255 are bytes, further ids `merges`, then three special ones.

    With `merges`, a text has more than one spelling in ids, so decoding and encoding again may change them.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    merges = merges or []
    vocabulary = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=4096
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_model(path: Path, tied: bool = True, seed: int = 0, hidden: int = 64, layers: int = 2) -> Path:
    """Save a random Qwen3 model and its tokenizer into the folder `path`; returns `path`.

    It has about 0.1 M parameters, and 3 M with `hidden` 256 and 6 layers.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=320,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=tied,
    )
    tokenizer = tiny_tokenizer()
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).float()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
