"""How fast does the learner train? Against a loop with padding, and against itself without shared prompts.

The batch has the lengths of a real step: the second of a run of the built-in policy on the built-in pool, 8 tasks of 8
attempts. The loop is what one writes first: rows padded to the longest of their batch, all logits, log_softmax, AdamW;
the same model, tokens, precision and threads. Its batch size is the best of several. Rounds alternate, so that others'
use of the machine falls on all alike.

vs_padded_loop         trained tokens a second of the learner, without sharing prompts, against the loop's
shared_prefix_speedup  the same with prompts shared against without
overhead               part of an update, prompts shared, that is spent outside the model's forward and backward passes
logits_peak_mb         memory that log-probs of 4096 tokens of a vocabulary of 49152 take, forward and backward, besides
                       the hidden states and the weight that they are computed from
"""

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.output import arguments, report, say, scratch

LENGTHS = {
    90: [24, 9, 18, 29, 18, 102, 47, 22],
    106: [127, 26, 68, 26, 153, 58, 33, 160],
    93: [53, 50, 28, 94, 32, 50, 46, 45],
    98: [98, 25, 37, 113, 71, 58, 27, 35],
    94: [22, 20, 25, 11, 26, 20, 45, 131],
    91: [45, 36, 32, 32, 56, 27, 160, 35],
    99: [160, 56, 160, 90, 53, 70, 65, 27],
    95: [21, 19, 19, 66, 20, 32, 66, 32],
}
"""Tokens of each group's answers by those of its prompt; two prompts are one longer than they were, to differ."""

BATCH_SIZES = (4, 8, 16)
ROUNDS = 3
TOKENS, VOCABULARY, HIDDEN = 4096, 49152, 576


def main() -> None:
    """Measure in this process; the memory of log-probs in one of its own, which has used none before."""
    if sys.argv[1:] == ["logits"]:
        print(_logits_peak_mb())
        return
    # threads that spin on cores which others use too cost many times the time; read when torch is loaded
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    threads = str(len(os.sched_getaffinity(0)))
    os.environ.setdefault("OMP_NUM_THREADS", threads)
    options = arguments(__doc__ or "")
    say("memory of log-probs")
    peak = float(
        subprocess.run([sys.executable, "-m", "bench.learner", "logits"], check=True, capture_output=True).stdout
    )
    with scratch(options.root) as root:
        _measure(root, options.quick, peak)


def _measure(root: Path, quick: bool, peak: float) -> None:
    from trainer.model import ModelConfig, resolve_model

    lengths = dict(list(LENGTHS.items())[:2]) if quick else LENGTHS
    model = resolve_model(ModelConfig(), root)
    batch = root / "batch.parquet"
    _write_batch(batch, lengths)
    learner = _Learner(model, batch)
    loop = _PaddedLoop(model, batch)
    size = _best_size(loop, (4,) if quick else BATCH_SIZES)
    ways: dict[str, Callable[[], float]] = {
        "padded loop": lambda: loop.update(size),
        "learner, nothing shared": lambda: learner.update("never"),
        "learner": lambda: learner.update("auto"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    outside: list[float] = []
    for number in range(1 + (1 if quick else ROUNDS)):
        for name, update in ways.items():
            spent = update()
            say(f"round {number}: {name} {spent:.1f} s{' (warm-up)' if number == 0 else ''}")
            if number:
                seconds[name].append(spent)
        if number:
            outside.append(1 - learner.inside / seconds["learner"][-1])
    trained = sum(map(sum, lengths.values()))
    whole = trained + sum(prompt * len(answers) for prompt, answers in lengths.items())
    rows = [
        [name, statistics.median(spent), trained / statistics.median(spent), whole / statistics.median(spent)]
        for name, spent in seconds.items()
    ]
    figures = {
        "vs_padded_loop": _ratio(seconds["padded loop"], seconds["learner, nothing shared"]),
        "shared_prefix_speedup": _ratio(seconds["learner, nothing shared"], seconds["learner"]),
        "overhead": statistics.median(outside),
        "logits_peak_mb": peak,
    }
    report(
        f"learner: an update of {whole} tokens, {trained} of them trained; loop with batches of {size}",
        ["", "s", "trained tokens/s", "tokens/s"], rows, figures,
    )  # fmt: skip


def _ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def _best_size(loop: "_PaddedLoop", sizes: Sequence[int]) -> int:
    """The fastest batch size, tried on the first rollouts."""
    if len(sizes) == 1:
        return sizes[0]
    loop.update(sizes[0], first=16)
    spent = {size: loop.update(size, first=32) for size in sizes}
    say("padded loop: " + ", ".join(f"batches of {size} {seconds:.1f} s" for size, seconds in spent.items()))
    return min(spent, key=lambda size: spent[size])


def _write_batch(path: Path, lengths: dict[int, list[int]]) -> None:
    """Random tokens; the advantages of a group add up to 0."""
    import pyarrow.parquet as pq

    from trainer.batch import BatchRow, make_batch, sampled_lengths, with_advantages
    from trainer.rollout import NO_VERSION, Outcome, Rollout

    rng = np.random.default_rng(0)
    rows = []
    for prompt, answers in lengths.items():
        head = rng.integers(0, VOCABULARY, prompt).tolist()
        for number, answer in enumerate(answers):
            rollout = Rollout(
                session_id=f"s{prompt}-{number}", task_id=f"t{prompt}", group_id=f"g{prompt}", step=1,
                outcome=Outcome.COMPLETED,
                token_ids=[*head, *rng.integers(0, VOCABULARY, answer).tolist()],
                loss_mask=[0] * prompt + [1] * answer,
                logprobs=[float("nan")] * prompt + [-1.0] * answer,
                weight_versions=[NO_VERSION] * prompt + [0] * answer,
                prompt_length=prompt, num_turns=1,
            )  # fmt: skip
            rows.append(BatchRow(rollout, float(number % 2), float(number % 2)))
    table = make_batch(rows)
    signs = [2 * reward - 1 for reward in table.column("reward").to_pylist()]
    pq.write_table(with_advantages(table, np.repeat(signs, sampled_lengths(table))), path)


class _Learner:
    """A rank of the learner, without Ray. `inside` are the seconds that the last update spent in the model."""

    def __init__(self, model: Path, batch: Path) -> None:
        import torch.distributed as dist

        from trainer.algorithms.config import AlgorithmConfig
        from trainer.learner.config import LearnerConfig
        from trainer.learner.engine import build_policy, init_process_group
        from trainer.learner.rank import LearnerRank

        self._batch, self._updates, self.inside = str(batch), 0, 0.0
        config = LearnerConfig()
        init_process_group(dist.HashStore(), 0, config)
        policy = build_policy(str(model), config)
        self._time(policy, "forward")
        self._time(policy.engine, "backward")
        self._ranks = {}
        for share in ("auto", "never"):
            self._ranks[share] = LearnerRank(
                0, config.model_copy(update={"share_prompts": share}), AlgorithmConfig(), []
            )
            self._ranks[share].adopt(policy)

    def _time(self, owner: Any, name: str) -> None:
        method = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.monotonic()
            try:
                return method(*args, **kwargs)
            finally:
                self.inside += time.monotonic() - started

        setattr(owner, name, timed)

    def update(self, share: str) -> float:
        """Seconds of one update, from the batch's file to the weights' fingerprint."""
        rank = self._ranks[share]
        rank.updates = self._updates
        self._updates += 1
        self.inside, started = 0.0, time.monotonic()
        rank.update(self._updates, self._batch, 1.0)
        return time.monotonic() - started


class _PaddedLoop:
    """What one writes first, in plain transformers and torch."""

    def __init__(self, model: Path, batch: Path) -> None:
        import pyarrow.parquet as pq
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=True)
        self.rows = pq.read_table(batch).to_pylist()

    def update(self, size: int, first: int | None = None) -> float:
        """Seconds of one step over the first rollouts, or all."""
        import torch

        started = time.monotonic()
        rows = self.rows[:first]
        tokens = sum(sum(row["loss_mask"]) for row in rows)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            longest = max(len(row["token_ids"]) for row in part)
            ids, attend, mask = (torch.zeros(len(part), longest, dtype=torch.long) for _ in range(3))
            advantages = torch.zeros(len(part), longest)
            for i, row in enumerate(part):
                length = len(row["token_ids"])
                ids[i, :length], attend[i, :length] = torch.tensor(row["token_ids"]), 1
                mask[i, :length] = torch.tensor(row["loss_mask"])
                advantages[i, :length] = torch.tensor(np.nan_to_num(row["advantages"]))
            logits = self.model(input_ids=ids, attention_mask=attend, use_cache=False).logits[:, :-1].float()
            logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
            losses = -advantages[:, 1:] * torch.exp(logprobs - logprobs.detach())
            ((losses * mask[:, 1:]).sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.monotonic() - started


def _logits_peak_mb() -> float:
    import torch
    from torch import nn

    from trainer.learner.config import LearnerConfig
    from trainer.learner.logprobs import LogProbHead
    from trainer.learner.products import in_fp32

    config = LearnerConfig()
    weight = nn.Linear(HIDDEN, VOCABULARY, bias=False, dtype=torch.bfloat16)
    head = LogProbHead(weight, config.logprob_chunk, in_fp32(config))
    hidden = torch.randn(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    # the libraries of products, the threads of both passes and the gradients that stay are no part of it
    head.aim(torch.zeros(1, dtype=torch.long), 1.0)
    head(hidden[:, :1]).sum().backward()
    head.aim(torch.randint(0, VOCABULARY, (TOKENS,)), 1.0)
    with _PeakMemory() as memory:
        head(hidden).sum().backward()
    return memory.mb


class _PeakMemory:
    """The most memory that this process had in the block, above what it had before, in MB."""

    def __enter__(self) -> "_PeakMemory":
        self._before = self._peak = _resident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.mb = (self._peak - self._before) / 1e6

    def _watch(self) -> None:
        while not self._ended.wait(0.001):
            self._peak = max(self._peak, _resident())


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
