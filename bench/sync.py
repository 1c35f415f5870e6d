"""What a weight sync costs: a ZeRO-3 rank to a vLLM replica through shared memory, against a plain copy of the bytes.

Random weights in bfloat16, of the shapes of a tiny Qwen3 (1.6 M parameters), SmolLM2-135M and Qwen2.5-0.5B. A sync is
what training waits for: gathering, transfer, loading into the engine, and the proof that the engine computes with what
was sent. Syncs and copies take turns; medians. A copy writes all tensors, tied ones once, into memory that is in place.

Figures: `seconds` of a sync and `gb_per_s` at 135 M, `vs_memcpy` (speed against the copy; at 135 M, 0.25 is the aim),
`seconds_1_6m`, `seconds_500m` if memory allows, `peak_extra_buckets` (memory that a sync takes, in units of its bucket,
or of the largest tensor if that is larger: the most of the learner, with the shared memory, which it keeps, and of the
replica's own; at most 2 is the aim), `learner_extra_buckets` and `replica_extra_buckets`.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.output import arguments, report, say, scratch

SYNCS = 7
BUCKET_MIB = 64


@dataclass(frozen=True)
class Size:
    """A model, and the memory that a learner and a replica of it need."""

    name: str
    key: str
    gib: float


SIZES = (Size("1.6 M", "1_6m", 3), Size("135 M", "135m", 6), Size("500 M", "500m", 13))


@dataclass(frozen=True)
class Measured:
    """Medians of one model."""

    nbytes: int
    seconds: float
    memcpy: float
    learner_buckets: float
    replica_buckets: float

    @property
    def gb_per_s(self) -> float:
        return self.nbytes / self.seconds / 1e9


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    measured: dict[str, Measured] = {}
    with scratch(options.root) as root:
        from trainer.placement import ray_cluster

        for size in SIZES[:1] if options.quick else SIZES:
            free = psutil.virtual_memory().available / 2**30
            if free < size.gib:
                say(f"{size.name}: skipped, {free:.1f} GiB of memory are free and {size.gib} are needed")
                continue
            say(f"{size.name}: making a model, starting learner and replica")
            with ray_cluster():
                measured[size.key] = asyncio.run(_measure(size, make_model(root / size.key, size.key)))
    _report(measured)


def make_model(folder: Path, key: str) -> Path:
    """Random bfloat16 weights of a family's shapes, with a tokenizer that fits no better than it must."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

    from bench.tiny import tiny_tokenizer

    configs: dict[str, Any] = {
        "1_6m": Qwen3Config(
            vocab_size=4096, hidden_size=128, intermediate_size=448, num_hidden_layers=5, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, tie_word_embeddings=True,
        ),
        "135m": LlamaConfig(
            vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, tie_word_embeddings=True,
        ),
        "500m": Qwen2Config(
            vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
            num_key_value_heads=2, tie_word_embeddings=True,
        ),
    }  # fmt: skip
    if not (folder / "config.json").is_file():
        tokenizer, config = tiny_tokenizer(), configs[key]
        config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


async def _measure(size: Size, model: Path) -> Measured:
    from trainer.algorithms.config import AlgorithmConfig
    from trainer.learner.config import LearnerConfig
    from trainer.learner.group import LearnerGroup
    from trainer.serving.config import ServingConfig
    from trainer.serving.pool import ReplicaPool

    serving = ServingConfig(window=256, max_num_seqs=8, bucket_mib=BUCKET_MIB)
    run = f"sync/{size.key}"
    learner, replicas = await asyncio.gather(
        LearnerGroup.start(run, model, LearnerConfig(), AlgorithmConfig()), ReplicaPool.start(run, model, serving)
    )
    try:
        copies = _Copies(model)
        bucket = max(BUCKET_MIB * 2**20, copies.largest)
        say(f"{size.name}: {copies.nbytes / 1e6:.0f} MB; syncing")
        await learner.send_weights(1, replicas.actors, serving)
        peaks = await _Peaks.start(learner.actors[0], replicas.actors[0])
        await learner.send_weights(2, replicas.actors, serving)
        sender, receiver = peaks.extra(bucket)
        syncs, memcpys = [], []
        for version in range(3, 3 + SYNCS):
            started = time.perf_counter()
            await learner.send_weights(version, replicas.actors, serving)
            syncs.append(time.perf_counter() - started)
            memcpys.append(copies.seconds())
            say(f"{size.name}: sync {syncs[-1]:.3f} s, copy {memcpys[-1]:.3f} s")
        await replicas.require_version(version)
    finally:
        await replicas.shutdown()
        learner.shutdown()
    return Measured(
        copies.nbytes, statistics.median(syncs), statistics.median(memcpys), sender / bucket, receiver / bucket
    )


class _Copies:
    """The tensors of a model, and room for each of them."""

    def __init__(self, model: Path) -> None:
        import torch
        from safetensors.torch import load_file

        # as they lie in the file: a tied tensor once
        self._tensors = [tensor.clone() for path in model.glob("*.safetensors") for tensor in load_file(path).values()]
        self._room = [torch.zeros_like(tensor) for tensor in self._tensors]
        self.nbytes = sum(tensor.nbytes for tensor in self._tensors)
        self.largest = max(tensor.nbytes for tensor in self._tensors)

    def seconds(self) -> float:
        started = time.perf_counter()
        for room, tensor in zip(self._room, self._tensors, strict=True):
            room.copy_(tensor)
        return time.perf_counter() - started


class _Peaks:
    """How much more memory two actors held at most than when this was started."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._before = [_status(pid, "VmRSS") for pid in pids]
        for pid in pids:
            # makes the kernel forget the highest use so far
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    @classmethod
    async def start(cls, *actors: Any) -> "_Peaks":
        return cls([await actor.__ray_call__.remote(_give_back) for actor in actors])

    def extra(self, ring: int) -> list[int]:
        """Bytes of each. The memory that they share counts for its owner, the first, which keeps it between syncs."""
        more = [_status(pid, "VmHWM") - before for pid, before in zip(self._pids, self._before, strict=True)]
        return [max(more[0], 0) + ring, *(max(nbytes - ring, 0) for nbytes in more[1:])]


def _give_back(actor: Any) -> int:
    """Runs in an actor: memory that is free there goes back to the system, or a peak would hide in it."""
    import ctypes
    import gc
    import os

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return os.getpid()


def _status(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def _report(measured: dict[str, Measured]) -> None:
    rows = [
        [size.name, m.nbytes / 1e6, m.seconds, m.gb_per_s, m.memcpy / m.seconds, m.learner_buckets, m.replica_buckets]
        for size in SIZES
        if (m := measured.get(size.key))
    ]
    figures = {f"seconds_{key}": m.seconds for key, m in measured.items()}
    headline = measured.get("135m") or measured["1_6m"]
    figures |= {
        "seconds": headline.seconds,
        "gb_per_s": headline.gb_per_s,
        "vs_memcpy": headline.memcpy / headline.seconds,
        "learner_extra_buckets": headline.learner_buckets,
        "replica_extra_buckets": headline.replica_buckets,
        "peak_extra_buckets": max(headline.learner_buckets, headline.replica_buckets),
    }
    columns = ["parameters", "MB", "s", "GB/s", "vs memcpy", "learner +buckets", "replica +buckets"]
    report("Weight sync, ZeRO-3 rank to vLLM replica, shared memory", columns, rows, figures)


if __name__ == "__main__":
    main()
