"""Trials with a long tail for `python -m bench.async_`: an agent whose time goes by in waiting, not on the CPU.

What it waits for stands for compilers and test suites. The time is log-normal with p99/p50 of 16, and depends on the
task and on which trial of it this is, so that each mode has the same trials to run.
"""

import asyncio
import math
import random
from collections import Counter
from pathlib import Path

from harness.pool.index import TaskPointer, write_index
from harness.pool.schema import AgentSection, TaskConfig, TaskSection, VerifierSection
from harness.pool.task import Task
from harness.pool.write import write_task
from harness.proxy.session import Session
from harness.sandbox.base import Sandbox
from harness.scaffolds.base import Scaffold, ScaffoldResult, register_scaffold
from harness.scaffolds.client import ChatClient
from trainer.rollout import Outcome

SIGMA, LONGEST = 1.2, 20.0
"""Deviation of the logarithm; and the longest time, in medians, so that no single trial decides what is measured."""
MEDIAN = "LONG_TAIL_MEDIAN_SECONDS"
"""In the scaffold's `env`: how long half of the trials wait at most; none if it is not there."""

TOKENS, LETTERS = 12, 5
_TEST = f"""\
import unittest

from solution import ANSWER


class TestAnswer(unittest.TestCase):
    def test_letters(self):
        self.assertGreaterEqual(sum(c.isascii() and c.isalpha() for c in ANSWER), {LETTERS})
"""

_tried: Counter[str] = Counter()


@register_scaffold("long_tail")
class LongTail(Scaffold):
    """Asks twice, waits between, and writes both answers into solution.py."""

    async def run(self, task: Task, sandbox: Sandbox, session: Session) -> ScaffoldResult:
        """See `Scaffold.run`."""
        _tried[task.task_id] += 1
        pauses = waits(task.task_id, _tried[task.task_id], float(self.config.env.get(MEDIAN, 0)))
        self.transcript.say("user", task.instruction)
        async with ChatClient(session) as policy:
            for pause in pauses:
                await asyncio.sleep(pause)
                answer = await policy.complete(self.transcript.messages, max_tokens=TOKENS)
                self.transcript.say("assistant", answer.text)
                self.transcript.say("user", "Go on.")
        said = "".join(m["content"] for m in self.transcript.messages if m["role"] == "assistant")
        await sandbox.write_file("solution.py", f"ANSWER = {said!r}\n".encode("utf-8", "backslashreplace"))
        return self.result(Outcome.COMPLETED)


def waits(task_id: str, trial: int, median: float) -> list[float]:
    """Seconds before each of a trial's two turns: a log-normal time in all, cut off far beyond its 99th percentile."""
    rng = random.Random(f"{task_id}/{trial}")
    total = median * min(math.exp(SIGMA * rng.gauss(0, 1)), LONGEST)
    share = rng.random()
    return [total * share, total * (1 - share)]


def write_pool(folder: Path, tasks: int) -> Path:
    """Tasks that ask for letters, which a random policy gives in about one of three trials. Returns their index."""
    rows = []
    for number in range(tasks):
        name = f"{folder.name}-{number:03d}"
        config = TaskConfig(
            task=TaskSection(name=f"bench/{name}"),
            agent=AgentSection(timeout_sec=600),
            verifier=VerifierSection(timeout_sec=60),
            metadata={"fail_to_pass": ["test_answer.TestAnswer.test_letters"], "visible_tests": []},
        )
        write_task(
            folder / name,
            instruction=f"Write letters, please ({number}).\n",
            config=config,
            repo={"solution.py": 'ANSWER = ""\n'},
            tests={"test_answer.py": _TEST},
            solution={"solution.py": 'ANSWER = "abcdefghijkl"\n'},
        )
        rows.append(TaskPointer(name, folder / name))
    write_index(rows, folder / "index.parquet")
    return folder / "index.parquet"
