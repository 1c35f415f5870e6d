"""The only thing that tests of the harness replace: a policy that answers from a script."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.rollout import Generation, Sampling


def generation(ids: Sequence[int], finish_reason: Any = "stop", version: int = 0) -> Generation:
    """An answer of `ids` with a distinct log-prob for each."""
    n = len(ids)
    return Generation(list(ids), [-0.25 - i / 64 for i in range(n)], [version] * n, finish_reason)


@dataclass
class Call:
    prompt_ids: list[int]
    sampling: Sampling
    session_id: str


@dataclass
class ScriptedPolicy:
    """Answers the n-th call with `script[n]` (the last one again when they run out).

    An entry is a text, ended by the end-of-sequence token or cut after `max_tokens` or a stop string as an engine
    does; a Generation; an exception to raise; or a function of the call that returns one of these.
    """

    tokenizer: Any
    script: Sequence[Any]
    delay: float = 0.0
    calls: list[Call] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    cancelled: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
        call = Call(list(prompt_ids), sampling, session_id)
        entry = self.script[min(len(self.calls), len(self.script) - 1)]
        self.calls.append(call)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.started.set()
        try:
            await asyncio.sleep(self.delay)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        if isinstance(entry, Callable):  # type: ignore[arg-type]
            entry = entry(call)
        if isinstance(entry, BaseException):
            raise entry
        return self.sample(entry, sampling) if isinstance(entry, str) else entry

    def sample(self, text: str, sampling: Sampling) -> Generation:
        """`text` as an engine would sample it."""
        ids: list[int] = []
        for token in [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]:
            ids.append(token)
            if any(stop in self.tokenizer.decode(ids) for stop in sampling.stop):
                return generation(ids)
            if token == self.tokenizer.eos_token_id:
                return generation(ids)
            if len(ids) == sampling.max_tokens:
                break
        return generation(ids, "length")
