"""What fanning a step's trials out costs: Prefect, proxy, progress and bookkeeping against bare asyncio.

Trials end at once, with a small real result, so that nothing is measured but what surrounds them: a Prefect flow with
its temporary server, the `run_trials` task, a proxy, progress artifacts, the run's log, the journal. The other side
runs the same trials in one `asyncio` task group under the same limit, and journals them alike. Both take turns.

`overhead_ratio`: wall time of the flow over that of bare asyncio, the larger of both sizes' medians.
`api_calls_per_trial`: requests to Prefect's server and events sent to it, over the trials run.
`mib_per_1000`: by how much this process grew for a thousand trials, once it had run all sizes.
"""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import psutil

from bench.fan_out_flow import draw, fan_out_flow
from bench.output import arguments, report, say, scratch
from flows.environment import prepare, tracking_uri

ATTEMPTS = 8
CONCURRENCY = 256
WINDOW = 4096
ANSWER_TOKENS = 200


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "")
    sizes, rounds = ((128, 512), 2) if options.quick else ((512, 2048), 3)
    with scratch(options.root) as root:
        prepare(root)
        rows, figures = asyncio.run(_measure(root, sizes, rounds))
    columns = ["trials", "bare s", "flow s", "ratio", "calls to Prefect", "memory after, MiB"]
    report("fan-out: a flow over bare asyncio", columns, rows, figures)


async def _measure(root: Path, sizes: tuple[int, ...], rounds: int) -> tuple[list[list[object]], dict[str, float]]:
    from flows.config import RunConfig
    from flows.open_run import open_run

    config = RunConfig.model_validate({"project": "bench", "experiment": "fanout"})
    run = open_run(config, root, tracking_uri(root))
    flow = fan_out_flow(CONCURRENCY)
    walls: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
    calls: dict[int, list[int]] = {size: [] for size in sizes}
    memory: dict[int, float] = {}
    grown: list[tuple[int, float]] = []
    trials = 0
    with _instant_trials(), _counting() as counted:
        say("starting Prefect's temporary server")
        await _round(flow, run, config, "step_900000", sizes[0])
        for number in range(rounds):
            for place, size in enumerate(sizes):
                label = f"step_{number:03d}{place:03d}"
                # whoever comes second finds warm caches; so they take turns in that too
                bare = await _bare(run, f"bare_{label}", size) if number % 2 else 0.0
                before = counted.calls
                wall = await _round(flow, run, config, label, size)
                calls[size].append(counted.calls - before)
                bare = bare or await _bare(run, f"bare_{label}", size)
                walls[size].append((bare, wall))
                trials += size
                memory[size] = _memory()
                say(f"{size} trials: bare {bare:.2f} s, flow {wall:.2f} s, {memory[size]:.0f} MiB")
            grown.append((trials, memory[sizes[-1]]))
    ratios = {size: median(wall / bare for bare, wall in walls[size]) for size in sizes}
    rows: list[list[object]] = [
        [size, median(b for b, _ in walls[size]), median(w for _, w in walls[size]), ratios[size],
         median(calls[size]), memory[size]]
        for size in sizes
    ]  # fmt: skip
    (first, small), (last, large) = grown[0], grown[-1]
    return rows, {
        "overhead_ratio": max(ratios.values()),
        "api_calls_per_trial": sum(map(sum, calls.values())) / trials,
        "mib_per_1000": (large - small) / (last - first) * 1000,
    }


async def _round(flow: Any, run: Any, config: Any, label: str, size: int) -> float:
    """Seconds in which the flow runs so many trials; afterwards all of them are in the journal."""
    draw(run, label, size // ATTEMPTS, ATTEMPTS)
    started = time.monotonic()
    result = await flow(run, label, config)
    wall = time.monotonic() - started
    journaled = len(run.journal.trials(label))
    if not result["outcomes"]["completed"] == journaled == size:
        raise RuntimeError(f"{label}: {size} trials were drawn, {journaled} are journaled; counted: {result}")
    return wall


async def _bare(run: Any, label: str, size: int) -> float:
    """Seconds of the same trials, run and journaled by nothing but asyncio."""
    from harness.trial import TrialSpec, new_session_id
    from tasks import fan_out as module
    from tasks.draw import groups_path, read_groups
    from tasks.trial_files import store_trial
    from trainer.rollout import Sampling

    draw(run, label, size // ATTEMPTS, ATTEMPTS)
    folder, limit = run.journal.trials_dir(label), asyncio.Semaphore(CONCURRENCY)
    started = time.monotonic()

    async def one(group: Any) -> None:
        async with limit:
            spec = TrialSpec(
                new_session_id(group.task_id), group.group_id, group.task_id, group.task_path, 1, Sampling()
            )
            result = await module.run_trial_with_retries(spec, None, None, None, None, attempts=1)  # type: ignore[arg-type]
            await asyncio.to_thread(store_trial, folder / spec.session_id, result)

    async with asyncio.TaskGroup() as trials:
        for group in read_groups(groups_path(run.journal.stage_dir(label))):
            for _ in range(group.attempts):
                trials.create_task(one(group))
    return time.monotonic() - started


@contextmanager
def _instant_trials() -> Iterator[None]:
    """Trials that end at once, served by a policy that is never asked; all around them is what it always is."""
    from bench.tiny import tiny_tokenizer
    from harness.proxy.codec import ChatCodec
    from harness.proxy.tool_calls import ToolReader
    from tasks import fan_out as module
    from tasks.served_policy import Served

    tokenizer = tiny_tokenizer()

    @asynccontextmanager
    async def served(*_: Any) -> Any:
        yield Served(None, ChatCodec(tokenizer), ToolReader(tokenizer, None, None), WINDOW)  # type: ignore[arg-type]

    async def trial(spec: Any, *_: Any, attempts: int) -> Any:
        await asyncio.sleep(0)
        return _result(spec)

    with patch.object(module, "served_policy", served), patch.object(module, "run_trial_with_retries", trial):
        yield


def _result(spec: Any) -> Any:
    """A completed trial of two turns, about 400 tokens of them sampled."""
    from harness.patch import Patch
    from harness.proxy.capture import Capture, Request
    from harness.proxy.conversation import ChatMessage
    from harness.scaffolds.base import Transcript
    from harness.trial import TrialResult
    from trainer.rollout import Generation, Outcome

    capture = Capture(_PlainCodec())  # type: ignore[arg-type]
    transcript = Transcript()
    messages = [ChatMessage(role="user", content="mend it")]
    transcript.say("user", "mend it")
    for number in range(2):
        told = ChatMessage(role="assistant", content=f"answer {number} " * 40)
        turn = capture.begin_turn(Request(messages, ()))
        ids = [7 + (number + i) % 50 for i in range(ANSWER_TOKENS)]
        capture.end_turn(turn, Generation(ids, [-0.5] * len(ids), [0] * len(ids), "stop"), told)
        messages = [*messages, told, ChatMessage(role="user", content="go on")]
        transcript.say("assistant", str(told["content"]))
    rollouts = capture.rollouts(
        "longest", session_id=spec.session_id, task_id=spec.task_id, group_id=spec.group_id, step=spec.step,
        outcome=Outcome.COMPLETED,
    )  # fmt: skip
    return TrialResult(
        spec, Outcome.COMPLETED, rollouts=rollouts, segments=capture.segments, transcript=transcript, scaffold="edit",
        patch=Patch({"solution.py": b"fixed\n" * 20}, (), "+fixed\n" * 20), timings={"agent": 0.0},
    )  # fmt: skip


class _PlainCodec:
    """Encodes every first prompt, and whatever follows an answer, as the same few tokens."""

    def encode_prompt(self, *_: Any) -> list[int]:
        return [1, 2, 3] * 20

    def encode_delta(self, *_: Any) -> list[int]:
        return [5, 6]


@dataclass
class _Counted:
    calls: int = 0


@contextmanager
def _counting() -> Iterator[_Counted]:
    """Counts what is sent to Prefect's server from within this process: requests, and events over its web socket."""
    import httpx
    from prefect.events.clients import PrefectEventsClient

    counted = _Counted()
    send, emit = httpx.AsyncClient.send, PrefectEventsClient._emit
    blocking = httpx.Client.send

    async def counted_send(self: Any, request: Any, **options: Any) -> Any:
        counted.calls += "/api" in request.url.path
        return await send(self, request, **options)

    def counted_blocking(self: Any, request: Any, **options: Any) -> Any:
        counted.calls += "/api" in request.url.path
        return blocking(self, request, **options)

    async def counted_emit(self: Any, *events: Any, **options: Any) -> Any:
        counted.calls += 1
        return await emit(self, *events, **options)

    with (
        patch.object(httpx.AsyncClient, "send", counted_send),
        patch.object(httpx.Client, "send", counted_blocking),
        patch.object(PrefectEventsClient, "_emit", counted_emit),
    ):
        yield counted


def _memory() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss / 2**20)


if __name__ == "__main__":
    main()
