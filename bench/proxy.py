"""What the proxy costs between an agent and the engine.

Sessions that talk over many turns, their clients in a process of their own, first against an engine with the latency
of a real one: throughput over that of the bare engine, which is called directly in the same run, and what each call
takes longer than its sampling. Then 512 sessions at once against an engine that answers at once, and one session whose
context is short or long. The engine is a stub, so that only the proxy is measured.
"""

import asyncio
import gc
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import psutil

from bench.output import arguments, report, say
from bench.proxy_clients import Load, Timings
from bench.tiny import tiny_tokenizer
from trainer.rollout import Generation, Sampling

WINDOW = 200_000
WORD = " abcd"
"""One token of the bench's tokenizer, and about as many characters as a real one has for a token."""
MERGES = [("a", "b"), ("ab", "c"), ("abc", "d"), ("Ġ", "abcd")]


@dataclass
class StubEngine:
    """A policy that samples for as long as an engine would: prefill of what is new, then a step for each token.

    `tokens` are the bounds of an answer's length, which depends on session and turn alone. `seconds` are those that
    each call took, by session.
    """

    tokenizer: Any
    step_seconds: float
    prefill_per_second: float
    tokens: tuple[int, int]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    _read: dict[str, int] = field(default_factory=dict)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
        started = time.monotonic()
        known = self.seconds.setdefault(session_id, [])
        length = random.Random(f"{session_id} {len(known)}").randint(*self.tokens)
        new = max(len(prompt_ids) - self._read.get(session_id, 0), 1)
        self._read[session_id] = len(prompt_ids) + length
        (word,) = self.tokenizer.encode(WORD, add_special_tokens=False)
        ids = [word] * (length - 1) + [self.tokenizer.eos_token_id]
        if self.step_seconds:
            await asyncio.sleep(new / self.prefill_per_second + length * self.step_seconds)
        known.append(time.monotonic() - started)
        return Generation(ids, [-0.5] * length, [0] * length, "stop")


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "")
    figures, rows = asyncio.run(_measure(options.quick))
    report("proxy: between agent and engine", ["measurement", "value"], rows, figures)


async def _measure(quick: bool) -> tuple[dict[str, Any], list[list[object]]]:
    tokenizer = tiny_tokenizer(merges=MERGES)
    tokenizer.model_max_length = WINDOW
    sessions, turns = (16, 3) if quick else (64, 8)
    bare, through, added = await _against_bare_engine(tokenizer, sessions, turns)
    many, many_turns = (64, 4) if quick else (512, 8)
    calls_per_s, rss, errors = await _many_sessions(tokenizer, many, many_turns)
    contexts = {"1k": 1000, "10k": 10_000} if quick else {"1k": 1000, "100k": 100_000}
    turn_ms = {name: await _turn_ms(tokenizer, tokens) for name, tokens in contexts.items()}
    figures = {
        "throughput_ratio": through / bare,
        "added_ms_p50": float(np.percentile(added, 50)),
        "added_ms_p99": float(np.percentile(added, 99)),
        "calls_per_s": calls_per_s,
        "rss_mb_per_session": rss,
        "errors": errors,
        "turn_ms": turn_ms,
    }
    rows: list[list[object]] = [
        [f"bare engine, {sessions} sessions: tokens/s", bare],
        ["through the proxy: tokens/s", through],
        ["ratio", figures["throughput_ratio"]],
        ["added to a call: ms, median", figures["added_ms_p50"]],
        ["added to a call: ms, 99th percentile", figures["added_ms_p99"]],
        [f"{many} sessions of {many_turns} turns, engine at once: calls/s", calls_per_s],
        ["memory of a session: MB", rss],
        ["errors", errors],
        *([f"a turn at {name} tokens of context: ms", ms] for name, ms in turn_ms.items()),
    ]
    return figures, rows


async def _against_bare_engine(tokenizer: Any, sessions: int, turns: int) -> tuple[float, float, list[float]]:
    """Tokens per second of the bare engine, the same through the proxy, and the milliseconds added to each call."""
    load = Load(turns=turns, first_words=1500, turn_words=150, word=WORD, spread=2.0)
    names = [f"s{i}" for i in range(sessions)]

    def engine() -> StubEngine:
        # of the order of an 8B model with 64 sequences on one GPU
        return StubEngine(tokenizer, step_seconds=0.02, prefill_per_second=20_000, tokens=(60, 140))

    say(f"bare engine: {sessions} sessions of {turns} turns")
    direct = engine()
    started = time.monotonic()
    await asyncio.gather(*(_bare_session(direct, name, load, i / sessions) for i, name in enumerate(names)))
    wall = time.monotonic() - started
    say("the same through the proxy")
    served = engine()
    timings, _ = await _through_proxy(tokenizer, served, names, load)
    if timings.errors:
        raise RuntimeError(f"{timings.errors} calls failed, the first with: {timings.first_error}")
    added = [
        1000 * (whole - sampling)
        for name, seconds in zip(names, timings.seconds, strict=True)
        for whole, sampling in zip(seconds, served.seconds[name], strict=True)
    ]
    tokens = _tokens(names, turns, served)
    return tokens / wall, tokens / timings.wall, added


async def _bare_session(engine: StubEngine, name: str, load: Load, place: float) -> None:
    """The calls of one session without proxy or client: prompts of the lengths that it would have there."""
    await asyncio.sleep(place * load.spread)
    length = load.first_words
    for _ in range(load.turns):
        answer = await engine.generate(range(length), Sampling(), name)
        length += len(answer.token_ids) + load.turn_words


def _tokens(names: Sequence[str], turns: int, engine: StubEngine) -> int:
    return sum(random.Random(f"{name} {turn}").randint(*engine.tokens) for name in names for turn in range(turns))


async def _many_sessions(tokenizer: Any, sessions: int, turns: int) -> tuple[float, float, int]:
    """Calls per second, megabytes that each session added to this process, and the number of calls that failed."""
    say(f"{sessions} sessions of {turns} turns at once")
    load = Load(turns=turns, first_words=1500, turn_words=150, word=WORD)
    engine = StubEngine(tokenizer, step_seconds=0.0, prefill_per_second=1.0, tokens=(60, 140))
    timings, grown = await _through_proxy(tokenizer, engine, [f"s{i}" for i in range(sessions)], load)
    if timings.first_error:
        say(f"first error: {timings.first_error}")
    return sessions * turns / timings.wall, grown / sessions / 2**20, timings.errors


async def _turn_ms(tokenizer: Any, context: int) -> float:
    """Milliseconds that the proxy takes for a turn, the median of many in a session that holds `context` tokens."""
    say(f"a turn with {context} tokens of context")
    load = Load(turns=12, first_words=context, turn_words=100, word=WORD)
    engine = StubEngine(tokenizer, step_seconds=0.0, prefill_per_second=1.0, tokens=(50, 50))
    timings, _ = await _through_proxy(tokenizer, engine, ["s"], load)
    if timings.errors:
        raise RuntimeError(f"a call failed: {timings.first_error}")
    # the first turn renders the whole prompt
    return float(np.median(timings.seconds[0][2:]) * 1000)


async def _through_proxy(tokenizer: Any, engine: StubEngine, names: Sequence[str], load: Load) -> tuple[Timings, int]:
    """What clients saw, and by how many bytes this process grew until all sessions held their whole conversation."""
    from harness.proxy.codec import ChatCodec
    from harness.proxy.server import ProxyServer

    async with ProxyServer(engine, ChatCodec(tokenizer), WINDOW) as proxy:
        gc.collect()
        before = psutil.Process().memory_info().rss
        sessions = [proxy.open_session(name, Sampling(max_tokens=1024)) for name in names]
        clients = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.proxy_clients", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        question = {"urls": [session.base_url for session in sessions], "load": asdict(load)}
        out, _ = await clients.communicate(json.dumps(question).encode())
        gc.collect()
        grown = psutil.Process().memory_info().rss - before
    if clients.returncode:
        raise RuntimeError(f"the clients failed with status {clients.returncode}; see above")
    return Timings(**json.loads(out)), grown


if __name__ == "__main__":
    main()
