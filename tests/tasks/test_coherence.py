"""A model is asked one question before trials are spent on it."""

import math

import pytest

from tasks.coherence import QUESTION, TOKENS, IncoherentModel, judge, require_coherent
from trainer.rollout import Generation, Sampling

ANSWER = "Here is the function:\n\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds — 加 — two numbers."
SURE = [math.log(0.8)] * 40


def test_an_answer_that_makes_sense():
    assert judge(ANSWER, range(40), SURE) is None
    said = "The function `add(a, b)` is a simple function that takes two numbers and returns their sum."
    assert judge(said, range(32), [math.log(0.64)] * 32) is None
    assert judge("```python\nadd = lambda a, b: a + b\n```", range(16), SURE[:16]) is None
    assert judge("def add(a, b): return a + b", [1] * 8, SURE[:8]) is None, "short answers may repeat a token"


@pytest.mark.parametrize(
    ("text", "ids", "logprobs", "problem"),
    [
        ("", [2], SURE[:1], "its answer of 1 tokens is empty"),
        ("", [], [], "its answer of 0 tokens is empty"),
        (" \n\t", [5, 6], SURE[:2], "is empty"),
        ("!" * 64, [0] * 64, [math.log(0.9)] * 64, "it repeats itself: 1 different tokens in an answer of 64"),
        ("ab cd " * 8, [1, 2, 3] * 8, SURE[:24], "it repeats itself: 3 different"),
        ("\ufffd" * 10 + "x" * 30, range(40), SURE, "10 of its answer's 40 characters are unreadable"),
        ("\x00\x01\x02ab", range(5), SURE[:5], "3 of its answer's 5 characters are unreadable"),
        # answers of a model whose weights were garbled on purpose
        ("l,\n\n\nuWords *._ * \n,_maec,\nA's ,- time", range(25), [math.log(0.157)] * 25, "nothing to do with"),
        ("ediatcember liaynastyklahoma disseminriendsloor", range(25), [math.log(0.459)] * 25, "nothing to do with"),
        ("phal fleet doctrinalccess" * 4, range(25), [math.log(0.35)] * 25, "nothing to do with"),
        ("Kob shin gratis плот", range(40), [math.log(0.002)] * 40, "a probability of 0.002 each"),
    ],
)
def test_an_answer_that_makes_none(text, ids, logprobs, problem):
    assert problem in judge(text, list(ids), logprobs)


class Codec:
    """Words by number."""

    def encode_prompt(self, messages):
        assert messages == [{"role": "user", "content": QUESTION}]
        return [7, 8]

    def decode_answer(self, generation, stop):
        return type("Text", (), {"text": "".join(map(chr, generation.token_ids))})


class Model:
    def __init__(self, text):
        self.text = text
        self.asked = []

    async def generate(self, prompt_ids, sampling, session_id):
        self.asked.append((prompt_ids, sampling))
        ids = list(map(ord, self.text))
        return Generation(ids, [-0.1] * len(ids), [0] * len(ids), "stop")


async def test_one_short_greedy_question():
    model = Model(ANSWER)
    assert await require_coherent(model, Codec()) == ANSWER
    assert model.asked == [([7, 8], Sampling(temperature=0.0, max_tokens=TOKENS))]


async def test_noise_stops_with_what_was_said_and_a_mend():
    with pytest.raises(IncoherentModel, match=r"repeats itself.*it said '!!!!.*No trial was spent; check that weights"):
        await require_coherent(Model("!" * 40), Codec())
