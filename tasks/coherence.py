"""Whether a model talks at all, before trials are spent on it: one short answer, judged by what it is made of.

Weights that were merged wrongly, or served with another model's tokenizer, load without an error and answer in noise.
Scored, they look like a policy that solves nothing.
"""

import math
import re
from collections.abc import Sequence

from harness.endpoint import Endpoint
from harness.proxy.codec import ChatCodec
from harness.proxy.conversation import ChatMessage
from trainer.rollout import Policy, Sampling

QUESTION = "Write a Python function `add(a, b)` that returns the sum of two numbers, and explain it in one sentence."
TOKENS = 64
_CHAT_TOKENS = 1024
"""Behind an endpoint, models may think first, and be cut off before they answer."""
_WORDS = (
    "a",
    "add",
    "addition",
    "adds",
    "b",
    "def",
    "function",
    "lambda",
    "number",
    "numbers",
    "return",
    "returns",
    "sum",
)
"""An answer to the question has at least two of these. Garbled weights can be sure of themselves, and yet have none."""
_LEAST_PROBABILITY = 0.05
"""Geometric mean, below which the likeliest tokens are no better than chance: a coherent answer has 0.5 and more."""
_NOISE = 0.2
_JUDGED_TOKENS = 24
"""Of a shorter answer, repetition says nothing."""


class IncoherentModel(ValueError):
    """A model that answers with nothing, with the same over and over, or with noise."""


async def require_coherent(policy: Policy, codec: ChatCodec) -> str:
    """Ask the policy one question, greedily. Returns its answer.

    Raises:
        IncoherentModel: it makes no sense to score this model.
    """
    prompt = codec.encode_prompt([ChatMessage(role="user", content=QUESTION)])
    generation = await policy.generate(prompt, Sampling(temperature=0.0, max_tokens=TOKENS), "coherence-probe")
    text = codec.decode_answer(generation, ()).text
    return _require(text, judge(text, generation.token_ids, generation.logprobs))


async def require_coherent_endpoint(endpoint: Endpoint) -> str:
    """`require_coherent` of an endpoint; where it tells no tokens, its words are looked at, and nothing is said of
    how sure it is.

    Raises:
        IncoherentModel: it makes no sense to score this model.
    """
    if endpoint.has_tokens:
        return await require_coherent(endpoint, endpoint.codec)
    prompt = endpoint.codec.encode_prompt([ChatMessage(role="user", content=QUESTION)])
    generation = await endpoint.generate(prompt, Sampling(temperature=0.0, max_tokens=_CHAT_TOKENS), "coherence-probe")
    written = endpoint.codec.decode_answer(generation, ()).text
    reading = endpoint.tools.read(written, generation.token_ids, ())
    words = f"{reading.reasoning} {reading.text}".split()
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    return _require(" ".join(words), judge(" ".join(words), [numbers[word] for word in words], ()))


def _require(text: str, problem: str | None) -> str:
    if problem:
        raise IncoherentModel(
            f"the model does not make sense: {problem}. Asked {QUESTION!r}, it said {text[:200]!r}. No trial was "
            "spent; check that weights, tokenizer and chat template belong together, and that the folder was exported "
            "with `testgrad export`; or score it nevertheless, with --no-probe"
        )
    return text


def judge(text: str, token_ids: Sequence[int], logprobs: Sequence[float]) -> str | None:
    """What is wrong with a greedy answer to `QUESTION`, None if nothing is.

    `logprobs` are its tokens', [tokens]; none where nobody knows them.
    """
    if not text.strip():
        return f"its answer of {len(token_ids)} tokens is empty"
    unreadable = sum(not (char.isprintable() or char.isspace()) or char == "\N{REPLACEMENT CHARACTER}" for char in text)
    if unreadable > _NOISE * len(text):
        return f"{unreadable} of its answer's {len(text)} characters are unreadable"
    if len(token_ids) >= _JUDGED_TOKENS and len(set(token_ids)) <= len(token_ids) // 8:
        return f"it repeats itself: {len(set(token_ids))} different tokens in an answer of {len(token_ids)}"
    probability = math.exp(sum(logprobs) / len(logprobs)) if logprobs else 1.0
    if probability < _LEAST_PROBABILITY:
        return f"it guesses: it gave its own likeliest tokens a probability of {probability:.2g} each"
    if len(set(re.findall(r"\w+", text.lower())) & set(_WORDS)) < 2:
        return "its answer has nothing to do with the question"
    return None
