"""A policy that says what a script wants, and whose log-probs are those of a real, if tiny, model.

So that tokens that were captured can be scored again, by another run over them, and must come out the same: which they
do only if they are the ids that were sampled, after the ids that the policy was shown.
"""

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.chat_templates import FOLDER

from trainer.rollout import Generation, Rollout, Sampling

WINDOW = 40_000
_VOCABULARY = 4096
_SOURCES = Path(__file__).parents[2]
_OPENING = "<|im_start|>assistant\n"


@functools.cache
def scored_tokenizer() -> Any:
    """A tokenizer learnt from this repository's own files, about three characters a token, with Hermes' tools."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    texts = sorted([*_SOURCES.glob("harness/proxy/*.py"), *_SOURCES.glob("docs/*.md"), *_SOURCES.glob("trainer/*.py")])
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY - 8, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train([str(path) for path in texts], trainer)
    inner.add_tokens(["<tool_call>", "</tool_call>"])
    inner.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = (FOLDER / "chatml_tools.jinja").read_text()
    return tokenizer


@functools.cache
def scored_model() -> Any:
    """A random Qwen3 of one layer with a window of `WINDOW` tokens."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=_VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=WINDOW,
        initializer_range=0.2,  # far from uniform, so that a token more or less shows in all that follows
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen3ForCausalLM(config).float().eval()


def scored_folder(path: Path) -> Path:
    """Save the model and its tokenizer into the folder `path`, for an engine; returns `path`."""
    model, tokenizer = scored_model(), scored_tokenizer()
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def token_logprobs(ids: Sequence[int], last: int, temperature: float, cache: Any = None) -> list[float]:
    """Log-probs of the last `last` of `ids`, each after all before it, and after what `cache` has already."""
    import torch

    with torch.inference_mode():
        tokens = torch.tensor([list(ids)])
        logits = scored_model()(
            tokens, logits_to_keep=last + 1, past_key_values=cache, use_cache=cache is not None
        ).logits[0, :-1]
        chosen = tokens[0, -last:, None]
        logprobs = (logits.double() / temperature).log_softmax(-1)
        return [float(value) for value in logprobs.gather(1, chosen)[:, 0]]


def worst_difference(rollout: Rollout, temperature: float) -> float:
    """The largest difference between the log-probs of a rollout and those of one run over all its tokens."""
    start = rollout.prompt_length
    scores = token_logprobs(rollout.token_ids, len(rollout.token_ids) - start, temperature)
    sampled = [index for index, mask in enumerate(rollout.loss_mask) if mask]
    return max(abs(scores[index - start] - rollout.logprobs[index]) for index in sampled)


@dataclass
class ScoredPolicy:
    """Answers a prompt that holds n earlier answers with `script[n]`, the last one again when they run out.

    Answers begin with the spelling of one character a token, which no tokenizer would choose: whoever decodes and
    encodes again gives himself away. As in an engine, a prompt that goes on where the last one ended costs its new
    tokens alone.
    """

    script: Sequence[str]
    sampled: list[list[int]] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    _seen: list[int] = field(default_factory=list)
    _cache: Any = None

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
        prompt = list(prompt_ids)
        opening = scored_tokenizer().encode(_OPENING, add_special_tokens=False)
        starts = [place for place, token in enumerate(prompt) if token == opening[0]]
        earlier = sum(prompt[place : place + len(opening)] == opening for place in starts) - 1
        text = self.script[min(earlier, len(self.script) - 1)]
        ids = [*_spelled(text[:4]), *_spelled(text[4:], whole=True), scored_tokenizer().eos_token_id]
        assert len(ids) <= sampling.max_tokens, "the script does not fit into an answer"
        logprobs = await asyncio.to_thread(self._score, prompt, ids, sampling.temperature)
        self.sampled.append(ids)
        self.prompts.append(prompt)
        return Generation(ids, logprobs, [0] * len(ids), "stop")

    def _score(self, prompt: list[int], ids: list[int], temperature: float) -> list[float]:
        from transformers import DynamicCache

        if self._cache is None or prompt[: len(self._seen)] != self._seen:
            self._seen, self._cache = [], DynamicCache()
        new = [*prompt, *ids][len(self._seen) :]
        logprobs = token_logprobs(new, len(ids), temperature, self._cache)
        self._seen = [*prompt, *ids]
        return logprobs


def _spelled(text: str, whole: bool = False) -> list[int]:
    """Ids of a text, or of each of its characters."""
    pieces = [text] if whole else list(text)
    return [token for piece in pieces for token in scored_tokenizer().encode(piece, add_special_tokens=False)]
