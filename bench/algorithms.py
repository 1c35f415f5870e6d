"""What advantages, correction and metrics cost on the CPU, against one pass over the same tensors.

GRPO advantages, token-level correction, all metrics of mismatch and batch, for 512 rollouts of 32k tokens. One pass
reads every input column of tokens (log-probs of trainer and engine in float32, owners in int64) and writes as much: a
product, or a sum, into a tensor that exists already. Both are CPU seconds of one thread (waiting for a busy machine is
not counted); medians. Memory is the peak of the resident
set (ru_maxrss) less what is resident once the inputs are in place, outputs included, in a process of its own that does
the work once.
"""

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import psutil
import torch

from bench.output import arguments, report, say
from trainer.algorithms.advantages.base import AdvantageInputs
from trainer.algorithms.batch_metrics import batch_metrics
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.mismatch import MismatchSums
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS
from trainer.algorithms.rollout_correction.correct import Correction, correct
from trainer.algorithms.rollout_correction.segments import BLOCK

ROLLOUTS, TOKENS, GROUP = 512, 32_768, 8
QUICK = (64, 32_768)


@dataclass(frozen=True)
class Columns:
    """A step's batch: R rewards, N tokens."""

    old_logprobs: torch.Tensor
    rollout_logprobs: torch.Tensor
    sample_index: torch.Tensor
    rewards: torch.Tensor
    group_index: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def random(cls, rollouts: int, tokens: int) -> "Columns":
        """Log-probs of an engine that rounds differently, rewards of 0 and 1; made in blocks, without a peak."""
        generator = torch.Generator().manual_seed(0)
        total = rollouts * tokens
        old, rollout = torch.empty(total), torch.empty(total)
        for start in range(0, total, BLOCK):
            part = slice(start, start + BLOCK)
            old[part].exponential_(generator=generator).neg_()
            rollout[part].normal_(std=0.02, generator=generator).add_(old[part]).clamp_(max=0.0)
        sample_index = torch.arange(rollouts)[:, None].expand(rollouts, tokens).reshape(-1)
        rewards = torch.randint(0, 2, (rollouts,), generator=generator).double()
        lengths = torch.full((rollouts,), tokens)
        return cls(old, rollout, sample_index, rewards, torch.arange(rollouts) // GROUP, lengths)

    @property
    def by_token(self) -> tuple[torch.Tensor, ...]:
        return self.old_logprobs, self.rollout_logprobs, self.sample_index

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(column.nbytes for column in self.by_token)


class Work:
    """The parts that are measured, one after the other on the same columns."""

    def __init__(self, columns: Columns) -> None:
        self.columns, self.config = columns, AlgorithmConfig()
        self.estimate = ADVANTAGE_ESTIMATORS["grpo"].function

    def advantages(self) -> torch.Tensor:
        """[N] advantages."""
        c = self.columns
        inputs = AdvantageInputs(c.rewards, c.group_index, c.lengths)
        advantages: torch.Tensor = self.estimate(inputs, self.config).advantages
        return advantages

    def correction(self) -> Correction:
        """[N] weights."""
        c = self.columns
        correction_config = self.config.rollout_correction
        return correct(c.old_logprobs, c.rollout_logprobs, c.sample_index, len(c.lengths), correction_config)

    def metrics(self, advantages: torch.Tensor, correction: Correction) -> dict[str, float]:
        """All metrics of mismatch and batch."""
        c = self.columns
        sums = MismatchSums.zero(self.config.rollout_correction)
        sums.add(c.old_logprobs, c.rollout_logprobs, c.sample_index, len(c.lengths), correction)
        ones = torch.ones_like(c.lengths)
        return sums.metrics() | batch_metrics(c.rewards, c.group_index, c.lengths, ones, ones, advantages)

    def all(self) -> tuple[object, ...]:
        """Everything, outputs kept as a learner would."""
        advantages, correction = self.advantages(), self.correction()
        return advantages, correction, self.metrics(advantages, correction)


def main() -> None:
    """Measure memory in a process of its own, then time."""
    options = arguments(__doc__ or "")
    rollouts, tokens = QUICK if options.quick else (ROLLOUTS, TOKENS)
    repeats = 3 if options.quick else 5
    say(f"{rollouts} rollouts of {tokens} tokens: memory")
    peak = _peak_over_input(rollouts, tokens)
    say("time")
    torch.set_num_threads(1)
    columns = Columns.random(rollouts, tokens)
    work = Work(columns)
    one_pass = _median(_pass_over(columns), repeats)
    advantages, correction = work.advantages(), work.correction()
    parts = {
        "advantages (grpo)": _median(work.advantages, repeats),
        "correction (token)": _median(work.correction, repeats),
        "metrics": _median(lambda: work.metrics(advantages, correction), repeats),
        "all": _median(work.all, repeats),
    }
    rows: list[list[object]] = [["one pass", f"{one_pass * 1e3:.1f}", "1.00"]]
    rows += [[name, f"{seconds * 1e3:.1f}", f"{seconds / one_pass:.2f}"] for name, seconds in parts.items()]
    rows += [[f"peak memory over {columns.size / 2**20:.0f} MiB of input", "", f"{peak:.2f}"]]
    figures = {"passes": parts["all"] / one_pass, "peak_over_input": peak}
    report("algorithms on one thread", ["part", "CPU ms", "passes"], rows, figures)


def _pass_over(columns: Columns) -> Callable[[], None]:
    """Read and write every column once."""
    outputs = [torch.ones_like(column) for column in columns.by_token]

    def once() -> None:
        for column, output in zip(columns.by_token, outputs, strict=True):
            if column.is_floating_point():
                torch.mul(column, 1.0001, out=output)
            else:
                torch.add(column, 1, out=output)

    return once


def _median(function: Callable[[], object], repeats: int) -> float:
    function()
    times = []
    for _ in range(repeats):
        started = time.process_time()
        function()
        times.append(time.process_time() - started)
    return statistics.median(times)


def _peak_over_input(rollouts: int, tokens: int) -> float:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_peak, args=(rollouts, tokens, sender))
    process.start()
    sender.close()
    try:
        return float(receiver.recv())
    finally:
        process.join()


def _measure_peak(rollouts: int, tokens: int, sender: Connection) -> None:
    torch.set_num_threads(1)
    # libraries allocate what they need for good on their first call
    Work(Columns.random(GROUP, 64)).all()
    columns = Columns.random(rollouts, tokens)
    before = psutil.Process().memory_info().rss
    outputs = Work(columns).all()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sender.send((peak - before) / columns.size)
    del outputs


if __name__ == "__main__":
    main()
