"""One ZeRO-3 rank: a Ray actor that holds a shard of the policy and applies updates, each exactly once."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from jaxtyping import Bool, Float

from trainer.algorithms.aggregation import GlobalCounts, aggregate
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs
from trainer.algorithms.registry import KL_ESTIMATORS, POLICY_LOSSES, load_builtin
from trainer.algorithms.rollout_correction.correct import correct
from trainer.algorithms.value_loss import value_loss
from trainer.batch import read_train_batch
from trainer.learner import checkpoint as checkpoints
from trainer.learner.config import LearnerConfig
from trainer.learner.engine import PackedModel, build_critic, build_policy, build_reference, init_process_group
from trainer.learner.packing import PackedRow, dummy_row, pack_rows, split_over_ranks
from trainer.learner.samples import TrainSample, mini_batches, read_samples
from trainer.learner.totals import Totals
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

        # a config that arrives by pickle has not gone through the validation that fills the registries
        load_builtin()
        for plugin in plugins:
            importlib.import_module(plugin)
        self.rank, self.config, self.algorithm = rank, config, algorithm
        self.updates = 0
        self._record: UpdateRecord | None = None
        self._reference: PackedModel | None = None
        self._critic: PackedModel | None = None
        self._select = POLICY_LOSSES[algorithm.policy_loss].options.get("select")

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
        init_process_group(self._store, self.rank, self.config)
        self._model_path = model_path
        self._policy = build_policy(model_path, self.config)
        if self.algorithm.kl.place != "none":
            self._reference = build_reference(model_path, self.config)
        if self.config.critic is not None:
            self._critic = build_critic(model_path, self.config, self.config.critic)

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
        samples = read_samples(read_train_batch(Path(batch_path)))
        parts = mini_batches(samples, self.config.mini_batch_size)
        totals = Totals(self.algorithm.rollout_correction)
        if self._critic is not None:
            for mini_batch in parts * self.config.ppo_epochs:
                self._train_critic(self._critic, mini_batch, totals)
        work = [self._prepare(mini_batch) for mini_batch in parts]
        if len(work) * self.config.ppo_epochs > 1 or self._select is not None:
            # the policy that ratios compare with is the one before the first step, for all mini-batches and epochs
            for part in work:
                self._remember_old(part, temperature, seed=step)
        for epoch in range(self.config.ppo_epochs):
            for part in work:
                self._train_policy(part, temperature, totals, measure=epoch == 0)
        self.updates = step
        metrics = totals.reduce(len(work) * self.config.ppo_epochs) | {
            "actor/lr": float(self._policy.engine.get_lr()[0]),
            "actor/update_tokens": float(sum(len(s.token_ids) for s in samples if self._trains(s))),
        }
        self._record = UpdateRecord(step, self.fingerprint(), metrics)
        return self._record

    def score(
        self, batch_path: str, columns: Sequence[str], temperature: float, updates: int
    ) -> dict[str, Float[np.ndarray, " N"]]:
        """Columns of the sampled tokens of a batch, in its order, under the present weights; on rank 0 alone.

        `old_logprobs` and `sum_pi_squared` are of the policy, `ref_logprobs` of the reference, `values` of the critic.

        Raises:
            LearnerError: the weights are not those after `updates`, or no model here computes such a column.
        """
        if updates != self.updates:
            raise LearnerError(
                f"asked to score with the weights after {updates} updates, but they are at {self.updates}"
            )
        samples = read_samples(pq.read_table(batch_path))
        found: dict[int, dict[str, np.ndarray]] = {sample.index: {} for sample in samples}
        with torch.no_grad():
            for row in self._rows_of_rank(samples):
                for name, values in self._score_row(row, columns, temperature).items():
                    for sample, part in zip(row.samples, _by_sample(row, values), strict=True):
                        found[sample.index][name] = part.numpy()
        merged: dict[int, dict[str, np.ndarray]] = {}
        for part in _gather({index: values for index, values in found.items() if values}):
            merged |= part
        if self.rank or not samples:
            return {}
        return {name: np.concatenate([merged[sample.index][name] for sample in samples]) for name in columns}

    def fingerprint(self) -> str:
        """Digest of all weights, names and types included; what a replica reports after a sync in this precision."""
        dtype = getattr(torch, self.config.dtype)
        return fingerprint(
            TensorRecord.of(name, tensor) for name, tensor in full_tensors(self._policy.engine, dtype, 2**26)
        )

    def send_weights(self, version: int, replicas: Sequence[Any], dtype: str, bucket_bytes: int) -> str | None:
        """Sync the replicas to weight `version`. Returns, on rank 0, the fingerprint that they confirmed."""
        wire = getattr(torch, dtype)
        tensors = full_tensors(self._policy.engine, wire, bucket_bytes)
        if self.rank == 0:
            return send_weights(
                tensors, ReplicaActors(replicas), version, largest_tensor_bytes(self._policy.engine, wire), bucket_bytes
            )
        for _ in tensors:
            pass
        return None

    def save(self, root: str) -> str:
        """Write a checkpoint of the present weights and optimizer. Returns its folder."""
        state = {"updates": self.updates}
        engines = {name: model.engine for name, model in self._trained_models().items()}
        path = checkpoints.save(engines, Path(root), self.updates, self.fingerprint(), self._model_path, state)
        return str(path)

    def load(self, path: str) -> int:
        """Restore a checkpoint. Returns the number of updates it holds.

        Raises:
            LearnerError: the restored weights are not the ones that were saved.
        """
        checkpoint = checkpoints.Checkpoint.open(Path(path))
        engines = {name: model.engine for name, model in self._trained_models().items()}
        self.updates = int(checkpoints.load(engines, checkpoint)["updates"])
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

    def _trained_models(self) -> dict[str, PackedModel]:
        return {"policy": self._policy} | ({"critic": self._critic} if self._critic else {})

    def _trains(self, sample: TrainSample) -> bool:
        """Whether a rollout has a gradient. One without counts in the normaliser, but need not be computed."""
        pulls = self.algorithm.kl.in_loss or self.algorithm.entropy_coeff > 0
        return sample.trained_tokens > 0 and (pulls or sample.has_signal)

    def _prepare(self, samples: Sequence[TrainSample]) -> "_Work":
        rows = self._rows_of_rank([sample for sample in samples if self._trains(sample)])
        return _Work(samples, rows, _count(samples))

    def _rows_of_rank(self, samples: Sequence[TrainSample]) -> list[PackedRow]:
        """This rank's rows; as many as every other rank has, for each row is a chain of collectives."""
        if not samples:
            return []
        shares = split_over_ranks(pack_rows(samples, self.config.micro_batch_tokens), self.config.ranks)
        most = max(len(share) for share in shares)
        mine = shares[self.rank]
        return mine + [dummy_row(samples[0])] * (most - len(mine))

    def _remember_old(self, work: "_Work", temperature: float, seed: int) -> None:
        """Keep the log-probs of the present policy, and what the loss selects by them over the whole mini-batch."""
        with torch.no_grad():
            old = [self._policy.forward(row, temperature) for row in work.rows]
        work.old_logprobs = list(old)
        if self._select is None:
            return
        mine = {
            sample.index: part.cpu()
            for row, values in zip(work.rows, old, strict=True)
            for sample, part in zip(row.samples, _by_sample(row, values), strict=True)
        }
        everywhere: dict[int, torch.Tensor] = {}
        for part in _gather(mine):
            everywhere |= part
        known = [sample for sample in work.samples if sample.index in everywhere]
        if not known:
            return
        advantages = torch.from_numpy(np.concatenate([sample.columns["advantages"] for sample in known]))
        logprobs = torch.cat([everywhere[sample.index] for sample in known])
        chosen = self._select(advantages, logprobs, self.algorithm, seed).split(
            [len(everywhere[s.index]) for s in known]
        )
        by_index = {sample.index: part for sample, part in zip(known, chosen, strict=True)}
        work.selected = [
            torch.cat([by_index[s.index] for s in row.samples]) if row.samples else None for row in work.rows
        ]

    def _train_policy(self, work: "_Work", temperature: float, totals: Totals, measure: bool) -> None:
        if not work.rows:
            return
        for place, row in enumerate(work.rows):
            logprobs = self._policy.forward(row, temperature)
            loss = self._policy_loss(work, place, logprobs, totals, measure) if row.samples else logprobs.sum() * 0.0
            # ZeRO averages gradients over ranks; the shares must add up
            self._policy.engine.backward(loss * self.config.ranks)
        self._policy.engine.step()
        totals.step(self._policy.engine, "actor/grad_norm")

    def _policy_loss(
        self, work: "_Work", place: int, logprobs: Float[torch.Tensor, " N"], totals: Totals, measure: bool
    ) -> Float[torch.Tensor, ""]:
        """This row's share of the loss of its mini-batch."""
        row, config, device = work.rows[place], self.algorithm, logprobs.device
        old = work.old_logprobs[place]
        # one step on fresh rollouts: the policy that sampled is the one that is trained, and the ratio is exactly 1
        trainer = logprobs.detach() if old is None else old
        rollout = row.columns["rollout_logprobs"].to(device)
        sample_index, count = row.sample_index.to(device), len(row.samples)
        correction = correct(trainer, rollout, sample_index, count, config.rollout_correction)
        selected = work.selected[place]
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=rollout if config.rollout_correction.mode == "bypass" else trainer,
            advantages=row.columns["advantages"].to(device),
            sample_index=sample_index,
            sample_count=count,
            selected=None if selected is None else selected.to(device),
        )
        outputs = POLICY_LOSSES[config.policy_loss].function(inputs, config)

        def share(losses: Float[torch.Tensor, " N"]) -> Float[torch.Tensor, ""]:
            return aggregate(losses, sample_index, count, work.counts, config)

        shares = {"actor/pg_loss": share(correction.apply(outputs.losses))}
        loss = shares["actor/pg_loss"]
        entropy = self._policy.head.entropy
        if config.entropy_coeff:
            shares["actor/entropy_loss"] = share(entropy)
            loss = loss - config.entropy_coeff * shares["actor/entropy_loss"]
        if config.kl.in_loss:
            divergence = KL_ESTIMATORS[config.kl.estimator].function(logprobs, row.columns["ref_logprobs"].to(device))
            shares["actor/kl_loss"] = share(divergence)
            loss = loss + config.kl.coef * shares["actor/kl_loss"]
        totals.add(len(row.target_ids), outputs.metrics | {"actor/entropy": entropy}, shares)
        if measure:
            totals.compare(trainer, rollout, row, correction)
        return loss

    def _train_critic(self, critic: PackedModel, samples: Sequence[TrainSample], totals: Totals) -> None:
        counts = _count(samples)
        rows = self._rows_of_rank(samples)
        for row in rows:
            values = critic.forward(row)
            loss = values.sum() * 0.0
            if row.samples:
                old, returns = (row.columns[name].to(values.device) for name in ("values", "returns"))
                outputs = value_loss(values, old, returns, self.algorithm)
                loss = outputs.losses.sum() / counts.tokens
                means = {name: column.sum() / counts.tokens for name, column in outputs.metrics.items()}
                totals.add_shares({"critic/vf_loss": loss} | means)
            critic.engine.backward(loss * self.config.ranks)
        if rows:
            critic.engine.step()
            totals.step(critic.engine, "critic/grad_norm")

    def _score_row(self, row: PackedRow, columns: Sequence[str], temperature: float) -> dict[str, torch.Tensor]:
        scores = {}
        if {"old_logprobs", "sum_pi_squared"} & set(columns):
            scores["old_logprobs"] = self._policy.forward(row, temperature)
            scores["sum_pi_squared"] = self._policy.head.sum_pi_squared
        if "ref_logprobs" in columns and self._reference is not None:
            scores["ref_logprobs"] = self._reference.forward(row, temperature)
        if "values" in columns and self._critic is not None:
            scores["values"] = self._critic.forward(row)
        missing = sorted(set(columns) - set(scores))
        if missing:
            raise LearnerError(
                f"no model here computes {missing}: values need learner.critic, ref_logprobs algorithm.kl"
            )
        return {name: scores[name].float().cpu() for name in columns} if row.samples else {}


@dataclass
class _Work:
    """One mini-batch on this rank: an optimizer step. `old_logprobs` of a row is None where the ratio is 1."""

    samples: Sequence[TrainSample]
    rows: list[PackedRow]
    counts: GlobalCounts
    old_logprobs: list[Float[torch.Tensor, " N"] | None] = field(init=False)
    selected: list[Bool[torch.Tensor, " N"] | None] = field(init=False)

    def __post_init__(self) -> None:
        self.old_logprobs = [None] * len(self.rows)
        self.selected = [None] * len(self.rows)


def _count(samples: Iterable[TrainSample]) -> GlobalCounts:
    lengths = [sample.trained_tokens for sample in samples]
    return GlobalCounts(len(lengths), sum(lengths))


def _by_sample(row: PackedRow, values: torch.Tensor) -> Sequence[torch.Tensor]:
    return values.split([sample.trained_tokens for sample in row.samples])


def _gather(value: Any) -> list[Any]:
    """The value of each rank, on all of them."""
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered
