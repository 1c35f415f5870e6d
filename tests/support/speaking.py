"""A policy that says what a script says, but samples it as an engine would: with log-probs of a real, tiny model."""

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.chat_templates import FOLDER

from trainer.rollout import Generation, Rollout, Sampling

WINDOW = 65_536
_SOURCES = Path(__file__).parents[2] / "harness"
_PLAIN = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@functools.cache
def tool_tokenizer() -> Any:
    """A byte-level tokenizer with some thousand merges, learned from our own sources, and Qwen3's chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator((path.read_text() for path in sorted(_SOURCES.rglob("*.py"))), trainer)
    inner.add_tokens(_PLAIN)
    inner.add_special_tokens(_SPECIAL)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=WINDOW
    )
    tokenizer.chat_template = (FOLDER / "qwen3.jinja").read_text()
    return tokenizer


@functools.cache
def tiny_engine() -> Any:
    """A random Qwen3 model in float32 for `tool_tokenizer`, whose window holds what real agents say."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tool_tokenizer()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=WINDOW,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen3ForCausalLM(config).float().eval()


def score(token_ids: Sequence[int], start: int, temperature: float) -> list[float]:
    """Log-probs of `token_ids[start:]`, each given all before it."""
    import torch

    ids = torch.tensor([list(token_ids)])
    with torch.inference_mode():
        logits = tiny_engine()(ids, logits_to_keep=ids.shape[1] - start + 1).logits[0, :-1]
        logprobs = torch.log_softmax(logits.double() / temperature, dim=-1)
        return logprobs.gather(1, ids[0, start:, None])[:, 0].tolist()


def rescored(rollout: Rollout, temperature: float) -> list[float]:
    """What a trainer computes in one pass: log-probs of the sampled tokens of `rollout`."""
    first = list(rollout.loss_mask).index(1)
    logprobs = score(rollout.token_ids, first, temperature)
    return [logprob for logprob, mask in zip(logprobs, rollout.loss_mask[first:], strict=True) if mask]


def tool_call(name: str, **arguments: Any) -> str:
    """A call as Qwen3 writes it."""
    import json

    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass
class SpeakingPolicy:
    """Answers the n-th call with `script[n]` (the last one again when they run out).

    Answers begin with the spelling of one character a token, which no tokenizer would choose: whoever decodes and
    encodes again gives himself away.
    """

    script: Sequence[str]
    sampled: list[list[int]] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
        tokenizer = tool_tokenizer()
        text = self.script[min(len(self.sampled), len(self.script) - 1)]
        spelled, rest = (text[:4], text[4:]) if text[:4].isalpha() else ("", text)
        ids = [i for char in spelled for i in tokenizer.encode(char, add_special_tokens=False)]
        ids += [*tokenizer.encode(rest, add_special_tokens=False), tokenizer.eos_token_id]
        finish = "stop"
        if len(ids) > sampling.max_tokens:
            ids, finish = ids[: sampling.max_tokens], "length"
        prompt = list(prompt_ids)
        self.prompts.append(prompt)
        self.sampled.append(ids)
        logprobs = await asyncio.to_thread(score, [*prompt, *ids], len(prompt), sampling.temperature)
        return Generation(ids, logprobs, [len(self.sampled)] * len(ids), finish)
