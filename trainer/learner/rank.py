"""One ZeRO-3 rank: a Ray actor that holds a shard of the policy and applies updates, each exactly once."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float

from trainer.algorithms.aggregation import GlobalCounts, aggregate
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.mismatch import MismatchSums
from trainer.algorithms.policy_losses.base import LossInputs
from trainer.algorithms.registry import POLICY_LOSSES
from trainer.batch import read_train_batch
from trainer.learner import checkpoint as checkpoints
from trainer.learner.config import LearnerConfig
from trainer.learner.packing import PackedRow, TrainSample, dummy_row, pack_rows, split_over_ranks
from trainer.learner.weights import full_tensors, largest_tensor_bytes
from trainer.serving.buckets import TensorRecord, fingerprint
from trainer.serving.sender import ReplicaActors, send_weights


class LearnerError(RuntimeError):
    """The learner was asked for an update that does not follow from its state, or cannot be what it claims."""


@dataclass(frozen=True)
class UpdateRecord:
    """What one update did. `fingerprint` identifies the weights after it."""

    step: int
    fingerprint: str
    metrics: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class LearnerRank:
    """Rank `rank` of `config.ranks`.

    Every method that touches weights is a collective: all ranks call it, in the same order, with the same arguments.
    """

    def __init__(
        self, rank: int, config: LearnerConfig, algorithm: AlgorithmConfig, plugins: Sequence[str] = ()
    ) -> None:
        import importlib

        for plugin in plugins:
            importlib.import_module(plugin)
        self.rank, self.config, self.algorithm = rank, config, algorithm
        self.updates = 0
        self._record: UpdateRecord | None = None

    def open_store(self, address: str) -> tuple[str, int]:
        """Rank 0: the store where ranks meet, on a port that the kernel picks."""
        self._store = torch.distributed.TCPStore(
            address, 0, self.config.ranks, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
        )
        return address, self._store.port

    def address(self) -> str:
        """Where the other ranks reach this one; loopback if it has no peers."""
        if self.config.ranks == 1:
            return "127.0.0.1"
        import ray

        return str(ray.util.get_node_ip_address())

    def boot(self, model_path: str, address: str, port: int) -> None:
        """Join the group and load the policy."""
        if self.rank:
            timeout = timedelta(seconds=60)
            self._store = torch.distributed.TCPStore(address, port, self.config.ranks, is_master=False, timeout=timeout)
        _init_process_group(self._store, self.rank, self.config)
        self._model_path = model_path
        self._engine, self._head = _build_engine(model_path, self.config)
        self._device = self._engine.device

    def update(self, step: int, batch_path: str, temperature: float) -> UpdateRecord:
        """Apply update `step` from a batch. A repeated call for the last step returns its record.

        Raises:
            LearnerError: the step does not follow the last one.
        """
        if step == self.updates and self._record is not None:
            return self._record
        if step != self.updates + 1:
            raise LearnerError(
                f"asked for update {step}, but the weights are at {self.updates}; restore a checkpoint first"
            )
        samples, mini_batches = _read_mini_batches(Path(batch_path), self.config.mini_batch_size)
        totals = _Totals()
        work = [self._prepare(mini_batch) for mini_batch in mini_batches]
        if len(work) > 1:
            # the policy that ratios compare with is the one before the first step, for all mini-batches
            for part in work:
                part.old_logprobs = [self._old_logprobs(row, temperature) for row in part.rows]
        for part in work:
            self._mini_batch(part, temperature, totals)
        self.updates = step
        metrics = totals.reduce() | {
            "actor/lr": float(self._engine.get_lr()[0]),
            "actor/update_tokens": float(sum(len(s.token_ids) for s in samples if s.advantage != 0)),
        }
        self._record = UpdateRecord(step, self.fingerprint(), metrics)
        return self._record

    def logprobs(self, batch_path: str, temperature: float) -> list[list[float]]:
        """Log-probs of the trained tokens of every rollout in a batch, in its order, under the present weights."""
        samples, _ = _read_mini_batches(Path(batch_path), None)
        result: list[list[float]] = [[] for _ in samples]
        with torch.no_grad():
            for row in pack_rows(samples, self.config.micro_batch_tokens):
                values = self._forward(row, temperature).tolist()
                for owner, value in zip(row.sample_index.tolist(), values, strict=True):
                    result[row.samples[owner].index].append(value)
        return result

    def fingerprint(self) -> str:
        """Digest of all weights, names and types included; what a replica reports after a sync in this precision."""
        dtype = getattr(torch, self.config.dtype)
        return fingerprint(TensorRecord.of(name, tensor) for name, tensor in full_tensors(self._engine, dtype, 2**26))

    def send_weights(self, version: int, replicas: Sequence[Any], dtype: str, bucket_bytes: int) -> str | None:
        """Sync the replicas to weight `version`. Returns, on rank 0, the fingerprint that they confirmed."""
        wire = getattr(torch, dtype)
        tensors = full_tensors(self._engine, wire, bucket_bytes)
        if self.rank == 0:
            return send_weights(
                tensors, ReplicaActors(replicas), version, largest_tensor_bytes(self._engine, wire), bucket_bytes
            )
        for _ in tensors:
            pass
        return None

    def save(self, root: str) -> str:
        """Write a checkpoint of the present weights and optimizer. Returns its folder."""
        state = {"updates": self.updates}
        path = checkpoints.save(self._engine, Path(root), self.updates, self.fingerprint(), self._model_path, state)
        return str(path)

    def load(self, path: str) -> int:
        """Restore a checkpoint. Returns the number of updates it holds.

        Raises:
            LearnerError: the restored weights are not the ones that were saved.
        """
        checkpoint = checkpoints.Checkpoint.open(Path(path))
        self.updates = int(checkpoints.load(self._engine, checkpoint)["updates"])
        self._record = None
        restored = self.fingerprint()
        if restored != checkpoint.fingerprint:
            raise LearnerError(
                f"{path}: restored weights have fingerprint {restored[:12]}, saved were {checkpoint.fingerprint[:12]}"
            )
        return self.updates

    def state(self) -> int:
        """Number of updates applied."""
        return self.updates

    def _prepare(self, samples: Sequence[TrainSample]) -> "_Work":
        counts = GlobalCounts(len(samples), sum(sample.trained_tokens for sample in samples))
        # a rollout without advantage has no gradient: it counts in the normaliser, but need not be computed
        signal = [sample for sample in samples if sample.advantage != 0 and sample.trained_tokens]
        rows = self._rows_of_rank(signal) if signal else []
        return _Work(rows, [None] * len(rows), counts)

    def _mini_batch(self, work: "_Work", temperature: float, totals: "_Totals") -> None:
        if not work.rows:
            return
        for row, old_logprobs in zip(work.rows, work.old_logprobs, strict=True):
            logprobs = self._forward(row, temperature)
            loss = self._loss(row, logprobs, old_logprobs, work.counts, totals)
            # ZeRO averages gradients over ranks; the shares must add up
            self._engine.backward(loss * self.config.ranks)
        self._engine.step()
        totals.step(self._engine)

    def _rows_of_rank(self, samples: Sequence[TrainSample]) -> list[PackedRow]:
        shares = split_over_ranks(pack_rows(samples, self.config.micro_batch_tokens), self.config.ranks)
        most = max(len(share) for share in shares)
        mine = shares[self.rank]
        return mine + [dummy_row(samples[0])] * (most - len(mine))

    def _old_logprobs(self, row: PackedRow, temperature: float) -> Float[torch.Tensor, " N"]:
        with torch.no_grad():
            return self._forward(row, temperature)

    def _forward(self, row: PackedRow, temperature: float) -> Float[torch.Tensor, " N"]:
        self._head.aim(row.target_ids.to(self._device), temperature)
        output = self._engine(
            input_ids=row.token_ids.to(self._device),
            position_ids=row.position_ids.to(self._device),
            logits_to_keep=row.hidden_index.to(self._device),
            spans=row.spans,
            use_cache=False,
        )
        return output.logits[0, :, 0]

    def _loss(
        self,
        row: PackedRow,
        logprobs: Float[torch.Tensor, " N"],
        old_logprobs: Float[torch.Tensor, " N"] | None,
        counts: GlobalCounts,
        totals: "_Totals",
    ) -> Float[torch.Tensor, ""]:
        if not row.samples:
            return logprobs.sum() * 0.0
        advantages = torch.tensor([sample.advantage for sample in row.samples], dtype=torch.float32)[row.sample_index]
        inputs = LossInputs(
            logprobs=logprobs,
            # one step on fresh rollouts: the policy that sampled is the one that is trained, and the ratio is exactly 1
            old_logprobs=logprobs.detach() if old_logprobs is None else old_logprobs,
            advantages=advantages.to(self._device),
            sample_index=row.sample_index.to(self._device),
            sample_count=len(row.samples),
        )
        outputs = POLICY_LOSSES[self.algorithm.policy_loss](inputs, self.algorithm)
        loss = aggregate(outputs.losses, inputs, self.algorithm.loss_agg, counts)
        totals.row(row, loss, outputs.metrics, inputs.old_logprobs, self._head.entropy)
        return loss


@dataclass
class _Work:
    """One mini-batch on this rank: an optimizer step. `old_logprobs` of a row is None where the ratio is 1."""

    rows: list[PackedRow]
    old_logprobs: list[Float[torch.Tensor, " N"] | None]
    counts: GlobalCounts


class _Totals:
    """Sums of one update over rows, then over ranks."""

    def __init__(self) -> None:
        self.mismatch = MismatchSums.zero()
        self.tokens = 0
        self.loss = 0.0
        self.sums: dict[str, float] = {}
        self.grad_norms: list[float] = []
        self.skipped = 0

    def row(
        self,
        row: PackedRow,
        loss: torch.Tensor,
        metrics: dict[str, torch.Tensor],
        old_logprobs: torch.Tensor,
        entropy: torch.Tensor,
    ) -> None:
        self.tokens += len(row.target_ids)
        self.loss += float(loss.detach())
        for name, values in (metrics | {"actor/entropy": entropy}).items():
            self.sums[name] = self.sums.get(name, 0.0) + float(values.sum())
        self.mismatch.add(old_logprobs, row.rollout_logprobs)

    def step(self, engine: Any) -> None:
        self.grad_norms.append(float(engine.get_global_grad_norm()))
        self.skipped += not engine.was_step_applied()

    def reduce(self) -> dict[str, float]:
        """Metrics over all ranks; the same on each."""
        import torch.distributed as dist

        names = sorted(set().union(*_gather_objects(sorted(self.sums))))
        local = [self.sums.get(name, 0.0) for name in names] + [self.loss, float(self.tokens)]
        totals = torch.tensor(local, dtype=torch.float64)
        dist.all_reduce(totals)
        dist.all_reduce(self.mismatch.sums)
        dist.all_reduce(self.mismatch.max_diff, op=dist.ReduceOp.MAX)
        tokens = max(float(totals[-1]), 1.0)
        metrics = {name: float(total) / tokens for name, total in zip(names, totals[:-2], strict=True)}
        metrics["actor/pg_loss"] = float(totals[-2])
        if self.grad_norms:
            metrics["actor/grad_norm"] = sum(self.grad_norms) / len(self.grad_norms)
        metrics["actor/skipped_steps"] = float(self.skipped)
        return metrics | self.mismatch.metrics()


def _gather_objects(value: Any) -> list[Any]:
    import torch.distributed as dist

    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def _read_mini_batches(path: Path, size: int | None) -> tuple[list[TrainSample], list[list[TrainSample]]]:
    """Rollouts of a batch, and the same cut into mini-batches of `size` (one, if None)."""
    rows = read_train_batch(path).to_pylist()
    samples = [
        TrainSample(
            index=i,
            group_id=row["group_id"],
            token_ids=row["token_ids"],
            loss_mask=row["loss_mask"],
            rollout_logprobs=row["logprobs"],
            prompt_length=row["prompt_length"],
            advantage=row["advantage"],
        )
        for i, row in enumerate(rows)
    ]
    size = size or max(len(samples), 1)
    return samples, [samples[i : i + size] for i in range(0, len(samples), size)]


def _init_process_group(store: Any, rank: int, config: LearnerConfig) -> None:
    import deepspeed
    import deepspeed.ops
    import torch.distributed as dist
    from deepspeed.utils.logging import logger

    logger.setLevel("WARNING")
    # collectives that DeepSpeed calls are deprecated in torch: one line per call otherwise
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger")
    # DeepSpeed adopts the group; these are only read by its launcher detection
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(config.ranks), LOCAL_RANK="0")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    backend = "nccl" if config.gpus_per_rank else "gloo"
    timeout = timedelta(seconds=config.timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=config.ranks, timeout=timeout)
    # an op for inference only, compiled at start-up with a C++ compiler that a laptop need not have
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(backend)


def _build_engine(model_path: str, config: LearnerConfig) -> tuple[Any, Any]:
    import deepspeed
    from transformers import AutoModelForCausalLM

    from trainer.learner.attention import NAME, register
    from trainer.learner.logprobs import LogProbHead

    register()
    dtype = getattr(torch, config.dtype)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype, attn_implementation=NAME)
    model.lm_head = LogProbHead(model.lm_head, config.logprob_chunk)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )
    warmup = max(config.lr_warmup_steps, 1)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config=_deepspeed_config(config),
        lr_scheduler=lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / warmup)),
    )
    return engine, engine.module.lm_head


def _deepspeed_config(config: LearnerConfig) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        # we scale losses ourselves and step once a mini-batch, however many rows it has
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.grad_clip,
        "bf16": {"enabled": config.dtype == "bfloat16"},
        "zero_optimization": {"stage": 3, "overlap_comm": bool(config.gpus_per_rank), "contiguous_gradients": True},
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
