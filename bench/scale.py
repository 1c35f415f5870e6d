"""What thousands of trials at once cost the flow's process: 256, 1,024 and 4,096 of them, of several turns each.

A Prefect flow runs `run_trials`; trials, the scaffold `edit` with its HTTP client, the proxy and the journal are the
real ones, all in one process. The engine is a stub that answers after as long as one would take under such a load, and
sandboxes are empty. Rounds of fewer trials get proportionally faster answers, so that each sees as many a second.

`errors`: trials that ended otherwise than by their turns, or are not in the journal.
`rss_mb_per_trial`: how much this process grew at most, over the trials of the largest round, in MB.
`loop_lag_p99_ms`: how much later than asked the event loop woke a sleeper, in the largest round.
`overhead_ratio`: wall time of the largest round over that of its slowest trial, if it had only waited.
`cpu_ms_per_trial`: CPU time of this process for a trial, by the number of trials; `cost_spread` is the largest over
the smallest.
"""

import asyncio
import gc
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil

from bench.fan_out_flow import draw, fan_out_flow
from bench.output import arguments, report, say, scratch
from bench.still_sandbox import BACKEND, StillSandbox
from flows.environment import prepare, tracking_uri
from trainer.rollout import Generation, Sampling

ATTEMPTS = 8
WINDOW = 16_384
ANSWER_TOKENS = (80, 240)
LARGEST = 4096
TASKS = 16
TURN_SECONDS = 20.0
"""Mean of an answer at the largest size."""
LAG_SECONDS = 0.02
MERGES = [("a", "b"), ("ab", "c"), ("abc", "d"), ("Ġ", "abcd")]
WORD = " abcd"
_TEST = """\
import unittest


class TestModule(unittest.TestCase):
    def test_it(self):
        import module
"""


@dataclass
class WaitingEngine:
    """Answers of random words after a random while of `seconds` on average. `waited` is that of each session."""

    tokenizer: Any
    seconds: float
    waited: dict[str, float] = field(default_factory=dict)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
        seconds = self.seconds * random.uniform(0.5, 1.5)
        self.waited[session_id] = self.waited.get(session_id, 0.0) + seconds
        (word,) = self.tokenizer.encode(WORD, add_special_tokens=False)
        ids = [word] * random.randint(*ANSWER_TOKENS) + [self.tokenizer.eos_token_id]
        await asyncio.sleep(seconds)
        return Generation(ids, [-0.5] * len(ids), [0] * len(ids), "stop")

    async def require_serving(self) -> None:
        """As a pool of replicas has it."""


@dataclass(frozen=True)
class Round:
    """What one round came to."""

    trials: int
    errors: int
    wall: float
    ideal: float
    cpu_ms: float
    rss_mb: float
    lag_p99_ms: float


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "")
    sizes, turns = ([64, 256], 3) if options.quick else ([256, 1024, LARGEST], 6)
    with scratch(options.root) as root:
        prepare(root)
        rounds = asyncio.run(_measure(root, sizes, turns))
    largest, costs = rounds[-1], {str(found.trials): found.cpu_ms for found in rounds}
    rows: list[list[object]] = [
        [found.trials, found.errors, found.wall, found.ideal, found.wall / found.ideal, found.cpu_ms,
         found.rss_mb / found.trials, found.lag_p99_ms]
        for found in rounds
    ]  # fmt: skip
    columns = ["trials", "errors", "wall s", "ideal s", "ratio", "CPU ms a trial", "MB a trial", "lag p99, ms"]
    figures: dict[str, Any] = {
        "errors": sum(found.errors for found in rounds),
        "rss_mb_per_trial": largest.rss_mb / largest.trials,
        "loop_lag_p99_ms": largest.lag_p99_ms,
        "overhead_ratio": largest.wall / largest.ideal,
        "cpu_ms_per_trial": costs,
        "cost_spread": max(costs.values()) / min(costs.values()),
    }
    report(f"scale: trials of {turns} turns at once, in one process", columns, rows, figures)


async def _measure(root: Path, sizes: Sequence[int], turns: int) -> list[Round]:
    from flows.config import RunConfig
    from flows.open_run import open_run

    say("starting Prefect's temporary server")
    tasks = [_write_task(root / "tasks" / f"task-{number}", number) for number in range(TASKS)]
    config = RunConfig.model_validate(
        {
            "project": "bench",
            "experiment": "scale",
            "sandbox": {"backend": BACKEND},
            # a machine that others use too may take long; that is no fault of the trials
            "scaffold": {"name": "edit", "max_turns": turns, "agent_timeout": 3600.0},
            "serving": {"window": WINDOW},
        }
    )
    run = open_run(config, root, tracking_uri(root))
    flow = fan_out_flow(sizes[-1])
    with _served() as engine:
        await _round(flow, run, config, engine, tasks, "step_900000", 32)
        return [
            await _round(flow, run, config, engine, tasks, f"step_{number:06d}", size)
            for number, size in enumerate(sizes, 1)
        ]


def _write_task(path: Path, number: int) -> Path:
    """A task whose repository is one file of some 600 tokens."""
    from harness.pool.schema import AgentSection, TaskConfig, TaskSection, VerifierSection
    from harness.pool.write import write_task

    source = "".join(f"def function_{i}(value):\n    return value + {i * number}\n\n\n" for i in range(40))
    config = TaskConfig(
        task=TaskSection(name=f"bench/task-{number}"),
        agent=AgentSection(timeout_sec=3600),
        verifier=VerifierSection(timeout_sec=60),
        metadata={"fail_to_pass": ["test_module.TestModule.test_it"], "visible_tests": []},
    )
    write_task(
        path, instruction="Mend function_7.\n", config=config, repo={"module.py": source},
        tests={"test_module.py": _TEST}, solution={"module.py": source},
    )  # fmt: skip
    return path


async def _round(
    flow: Any, run: Any, config: Any, engine: WaitingEngine, tasks: Sequence[Path], label: str, size: int
) -> Round:
    draw(run, label, size // ATTEMPTS, ATTEMPTS, tasks)
    engine.waited.clear()
    engine.seconds = StillSandbox.start_seconds = TURN_SECONDS * size / LARGEST
    gc.collect()
    started, cpu, process = time.monotonic(), time.process_time(), psutil.Process()
    before = process.memory_info().rss
    async with _watching() as watched:
        result = await flow(run, label, config)
    wall, cpu = time.monotonic() - started, time.process_time() - cpu
    ended = {outcome: count for outcome, count in result["outcomes"].items() if count}
    say(f"{size} trials: {wall:.1f} s, {ended}")
    return Round(
        trials=size,
        errors=size - min(result["outcomes"]["max_turns"], len(run.journal.trials(label))),
        wall=wall,
        ideal=max(engine.waited.values()),
        cpu_ms=1000 * cpu / size,
        rss_mb=(watched.most_rss - before) / 1e6,
        lag_p99_ms=float(np.percentile(watched.lags, 99)) * 1000,
    )


@dataclass
class _Watched:
    lags: list[float] = field(default_factory=list)
    most_rss: int = 0


@asynccontextmanager
async def _watching() -> AsyncIterator[_Watched]:
    """How late the loop is, and how large the process grows, inside the block."""
    watched, process = _Watched(), psutil.Process()

    async def watch() -> None:
        while True:
            asked = time.monotonic()
            await asyncio.sleep(LAG_SECONDS)
            watched.lags.append(time.monotonic() - asked - LAG_SECONDS)
            watched.most_rss = max(watched.most_rss, process.memory_info().rss)

    watcher = asyncio.create_task(watch())
    try:
        yield watched
    finally:
        watcher.cancel()


@contextmanager
def _served() -> Iterator[WaitingEngine]:
    """Trials inside the block are answered by the engine."""
    from bench.tiny import tiny_tokenizer
    from harness.proxy.codec import ChatCodec
    from harness.proxy.tool_calls import ToolReader
    from tasks import fan_out as module
    from tasks.served_policy import Served

    tokenizer = tiny_tokenizer(merges=MERGES)
    tokenizer.model_max_length = WINDOW
    engine = WaitingEngine(tokenizer, 0.0)

    @asynccontextmanager
    async def served(*_: Any) -> AsyncIterator[Served]:
        yield Served(engine, ChatCodec(tokenizer), ToolReader(tokenizer, None, None), WINDOW)  # type: ignore[arg-type]

    # there is no Ray cluster, and so no replica to look after
    kept = patch.object(module, "replicas_kept", lambda *_: nullcontext())
    with patch.object(module, "served_policy", served), kept:
        yield engine


if __name__ == "__main__":
    main()
