"""The clients of `bench.proxy`, in a process of their own: they read their task from stdin and print what they saw."""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp


@dataclass(frozen=True)
class Load:
    """What each session does: a first message of `first_words` words, then one of `turn_words` after each answer.

    Sessions begin one after the other within `spread` seconds, as trials do whose sandboxes have to start first.
    """

    turns: int
    first_words: int
    turn_words: int
    word: str
    spread: float = 0.0


@dataclass
class Timings:
    """Seconds of each call by session, of all together, and how many calls did not end with an answer."""

    wall: float = 0.0
    seconds: list[list[float]] = field(default_factory=list)
    errors: int = 0
    first_error: str = ""


async def _main() -> None:
    task = json.loads(sys.stdin.read())
    load, timings = Load(**task["load"]), Timings()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as http:
        started = time.monotonic()
        urls = task["urls"]
        work = [_session(http, url, load, timings, i / len(urls)) for i, url in enumerate(urls)]
        timings.seconds = list(await asyncio.gather(*work))
        timings.wall = time.monotonic() - started
    print(json.dumps(asdict(timings)))


async def _session(http: aiohttp.ClientSession, url: str, load: Load, timings: Timings, place: float) -> list[float]:
    await asyncio.sleep(place * load.spread)
    messages: list[dict[str, Any]] = [{"role": "user", "content": load.word * load.first_words}]
    seconds: list[float] = []
    for _ in range(load.turns):
        # made before the clock starts: what the client computes is no cost of the proxy
        body = json.dumps({"model": "policy", "messages": messages}).encode()
        started = time.monotonic()
        try:
            async with http.post(
                f"{url}/chat/completions", data=body, headers={"content-type": "application/json"}
            ) as reply:
                answer = await reply.json()
                if reply.status != 200:
                    raise aiohttp.ClientError(f"status {reply.status}: {answer}")
        except (aiohttp.ClientError, TimeoutError) as error:
            timings.errors += 1
            timings.first_error = timings.first_error or f"{type(error).__name__}: {error}"
            return seconds
        seconds.append(time.monotonic() - started)
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        messages.append({"role": "user", "content": load.word * load.turn_words})
    return seconds


if __name__ == "__main__":
    asyncio.run(_main())
