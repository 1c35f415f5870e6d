"""One ZeRO-3 rank: a Ray actor that holds a shard of the policy and applies updates, each exactly once."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from jaxtyping import Float

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import load_builtin
from trainer.batch import read_train_batch
from trainer.learner import checkpoint as checkpoints
from trainer.learner.config import LearnerConfig
from trainer.learner.critic_update import CriticUpdate
from trainer.learner.determinism import same_bits_each_time
from trainer.learner.engine import build_critic, build_policy, build_reference, init_process_group
from trainer.learner.errors import LearnerError
from trainer.learner.layout import adapter_layout
from trainer.learner.lora.adapters import scaling_of
from trainer.learner.lora.reference import LoraBase
from trainer.learner.measures import memory_metrics, seqlen_metrics, speed_metrics
from trainer.learner.moe.replay import require_records, routing_metrics
from trainer.learner.packable import require_packable
from trainer.learner.packed_model import PackedModel
from trainer.learner.policy_update import PolicyUpdate
from trainer.learner.probe import measure
from trainer.learner.rendezvous import meet, open_store, reach_store
from trainer.learner.residency import Residency, trim
from trainer.learner.samples import mini_batches, read_samples
from trainer.learner.schedule import lr_factor
from trainer.learner.scoring import score_samples
from trainer.learner.totals import Totals
from trainer.learner.weights import WeightSource
from trainer.serving.adapters import send_adapters
from trainer.serving.buckets import TensorRecord, fingerprint
from trainer.serving.config import ServingConfig
from trainer.serving.memory import memory_used
from trainer.serving.transports import WeightSender

__all__ = ["LearnerError", "LearnerRank", "UpdateRecord"]

_HALFWAY = -1
"""The number of updates while one is applied or a checkpoint is loaded, and after that failed."""


@dataclass(frozen=True)
class UpdateRecord:
    """What one update did.

    `fingerprint` identifies the weights after it, and `adapters` those by themselves, if there are any.
    `lr_total_steps` is the length of the schedule that gave its learning rate.
    """

    step: int
    fingerprint: str
    metrics: dict[str, float] = field(default_factory=dict)
    lr_total_steps: int | None = None
    adapters: str | None = None

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
        self._sender = WeightSender(rank)
        self._residency = Residency()
        self._booted = False
        self._record: UpdateRecord | None = None
        self._reference: PackedModel | None = None
        self._critic: PackedModel | None = None

    def open_store(self, address: str) -> tuple[str, int]:
        """Rank 0: open the store where ranks meet. Returns where the others find it."""
        self._store = open_store(address, self.config.ranks)
        return address, self._store.port

    def address(self) -> str:
        """Where the other ranks reach this one; loopback if it has no peers."""
        if self.config.ranks == 1:
            return "127.0.0.1"
        import ray

        return str(ray.util.get_node_ip_address())

    def meet(self, address: str, port: int) -> None:
        """Come to the store, and wait for the others.

        Raises:
            RendezvousError: it is not there, or they do not come.
        """
        if self.rank:
            self._store = reach_store(address, port, self.config.ranks)
        meet(self._store, self.rank, self.config.ranks)

    def boot(self, model_path: str) -> None:
        """Join the group and load the models."""
        init_process_group(self._store, self.rank, self.config)
        if not self.config.gpus_per_rank:
            same_bits_each_time()
        self._model_path = model_path
        self.adopt(build_policy(model_path, self.config))
        require_packable(self._policy)
        if self.algorithm.kl.place != "none":
            self._reference = LoraBase(self._policy) if self.config.lora else build_reference(model_path, self.config)
        if self.config.critic is not None:
            self.adopt_critic(build_critic(model_path, self.config))
        self._booted = True

    def adopt(self, policy: PackedModel) -> None:
        """Train this policy."""
        self._policy = policy
        self._policy_update = PolicyUpdate(policy, self.rank, self.config, self.algorithm)

    def adopt_critic(self, critic: PackedModel) -> None:
        """Train this critic."""
        self._critic = critic
        self._critic_update = CriticUpdate(critic, self.rank, self.config, self.algorithm)

    def update(
        self,
        step: int,
        batch_path: str,
        temperature: float,
        lr_total_steps: int | None = None,
        fresh: int | None = None,
    ) -> UpdateRecord:
        """Apply update `step` from a batch. A repeated call for the last step returns its record.

        An update that was made before takes the `lr_total_steps` of its record: the run may have become longer since.
        For `fresh`, see `Totals`.

        Raises:
            LearnerError: the step does not follow the last one, or gradients were not finite too often.
        """
        if step == self.updates and self._record is not None:
            return self._record
        if step != self.updates + 1 or self.updates == _HALFWAY:
            where = "in the middle of one that failed" if self.updates == _HALFWAY else f"at {self.updates}"
            raise LearnerError(f"asked for update {step}, but the weights are {where}; restore a checkpoint first")
        self._residency.require("update")
        total = self.config.lr_total_steps if lr_total_steps is None else lr_total_steps
        self._set_learning_rates(step, total)
        samples = read_samples(read_train_batch(Path(batch_path)), routing=self.config.moe.replay)
        replay = self._policy.replay
        if replay is not None:
            require_records(samples)
            replay.forget()
        parts = mini_batches(samples, self.config.mini_batch_size)
        totals = Totals(self.algorithm.rollout_correction, counts=self.config.counts(self.rank), fresh=fresh)
        metrics: dict[str, float] = {}
        # from here on weights change: an update that fails must not be applied once more on top
        self.updates, self._record = _HALFWAY, None
        if self._critic is not None:
            started = time.monotonic()
            self._critic_update.train(parts, totals)
            metrics["timing_s/update_critic"] = time.monotonic() - started
        started = time.monotonic()
        work = [self._policy_update.mini_batch(part) for part in parts]
        self._policy_update.train(work, temperature, totals, seed=step)
        metrics |= speed_metrics(self._policy, work, self.config, time.monotonic() - started)
        self.updates = step
        metrics |= totals.reduce(len(work) * self.config.ppo_epochs)
        metrics |= routing_metrics(replay)
        metrics |= seqlen_metrics(samples, work, self.config.sequence_groups) | memory_metrics(self._policy.device)
        metrics |= {
            "actor/lr": float(self._policy.engine.get_lr()[0]),
            "actor/update_tokens": float(sum(len(s.token_ids) for part in work for s in part.with_gradient)),
        }
        self._record = UpdateRecord(step, self.fingerprint(), metrics, total, self.adapters_fingerprint())
        return self._record

    def _set_learning_rates(self, update: int, total: int) -> None:
        config = self.config
        rates = [(self._policy, config.lr, config.lr_warmup_steps)]
        if self._critic is not None and config.critic is not None:
            rates.append((self._critic, config.critic.lr, config.critic.lr_warmup_steps))
        for model, lr, warmup in rates:
            factor = lr_factor(update, config.lr_schedule, warmup, total, config.lr_min_ratio)
            for group in model.engine.optimizer.param_groups:
                group["lr"] = lr * factor

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
        self._residency.require("score")
        samples = read_samples(pq.read_table(batch_path), routing=self.config.moe.replay)
        models = {"policy": self._policy, "reference": self._reference, "critic": self._critic}
        return score_samples(models, samples, columns, temperature, self.rank, self.config)

    def fingerprint(self) -> str:
        """Digest of all weights, names and types included; what a replica reports after a sync in this precision."""
        self._residency.require("say its fingerprint")
        dtype = getattr(torch, self.config.dtype)
        source = WeightSource(self._policy.engine, dtype, 2**26)
        return fingerprint(TensorRecord.of(name, tensor) for name, tensor in source)

    def adapters_fingerprint(self) -> str | None:
        """Digest of the adapters alone, None if there are none: where they are merged, rounding hides small ones."""
        if self.config.lora is None:
            return None
        source = self._adapters(getattr(torch, self.config.dtype), 2**26)
        return fingerprint(TensorRecord.of(name, tensor) for name, tensor in source)

    def _adapters(self, dtype: torch.dtype, bucket_bytes: int) -> WeightSource:
        layout = adapter_layout(dict(self._policy.engine.module.named_parameters()))
        return WeightSource(self._policy.engine, dtype, bucket_bytes, layout)

    def send_weights(self, version: int, replicas: Sequence[Any], serving: ServingConfig) -> str | None:
        """Sync the replicas to weight `version`. Returns, on rank 0, the fingerprint that they confirmed."""
        self._residency.require("send weights")
        if self.config.lora is not None and self.config.lora.sync == "adapters":
            return self._send_adapters(version, replicas, serving)
        source = WeightSource(self._policy.engine, getattr(torch, serving.dtype), serving.portion_bytes)
        return self._sender.send(source, replicas, version, serving, gpus=bool(self.config.gpus_per_rank))

    def _send_adapters(self, version: int, replicas: Sequence[Any], serving: ServingConfig) -> str | None:
        source = self._adapters(getattr(torch, serving.dtype), serving.portion_bytes)
        if self.rank == 0:
            return send_adapters(source, replicas, version, scaling_of(self._policy.engine.module) or 1.0)
        for _ in source:
            pass
        return None

    def save(self, root: str, step: int, notes: Mapping[str, str]) -> str:
        """Write a checkpoint of the weights after update `step`, with the run's `notes`. Returns its folder.

        Raises:
            LearnerError: the weights are at another update by now.
            CheckpointError: it cannot be written.
        """
        if step != self.updates:
            raise LearnerError(f"asked to save the weights after update {step}, but they are at {self.updates}")
        self._residency.require("save")
        checkpoint = checkpoints.Checkpoint(
            path=Path(root) / f"global_step_{step}",
            step=step,
            ranks=self.config.ranks,
            fingerprint=self.fingerprint(),
            model_path=self._model_path,
            dtype=self.config.dtype,
            probe=measure(self._policy),
            scaling=scaling_of(self._policy.engine.module),
            adapters=self.adapters_fingerprint(),
            notes=dict(notes),
        )
        engines = {name: model.engine for name, model in self._trained_models().items()}
        return str(checkpoints.save(engines, checkpoint))

    def load(self, path: str) -> int:
        """Restore a checkpoint. Returns the number of updates it holds.

        Raises:
            LearnerError: the restored weights are not the ones that were saved.
        """
        self._residency.require("load")
        checkpoint = checkpoints.Checkpoint.open(Path(path))
        self.updates, self._record = _HALFWAY, None
        checkpoints.load({name: model.engine for name, model in self._trained_models().items()}, checkpoint)
        self._require_saved(checkpoint)
        self.updates = checkpoint.step
        return self.updates

    def _require_saved(self, checkpoint: checkpoints.Checkpoint) -> None:
        found = (
            ("weights", self.fingerprint(), checkpoint.fingerprint),
            ("adapters", self.adapters_fingerprint(), checkpoint.adapters),
        )
        for what, restored, saved in found:
            if restored != saved:
                raise LearnerError(
                    f"{checkpoint.path}: restored {what} have fingerprint {restored and restored[:12]}, "
                    f"saved were {saved and saved[:12]}"
                )

    def booted(self) -> tuple[str, LearnerConfig, AlgorithmConfig]:
        """Model, config and algorithm that this rank computes with.

        Raises:
            LearnerError: its boot has not come to an end.
        """
        if not self._booted:
            raise LearnerError("the boot of this rank was interrupted")
        return self._model_path, self.config, self.algorithm

    def state(self) -> int:
        """Number of updates applied."""
        return self.updates

    def resident(self) -> bool:
        """Whether weights and optimizer are on the device, where all work is done."""
        return self._residency.resident

    def trim(self) -> None:
        """Keep no more of the device than is in use."""
        trim()

    def offload(self) -> int:
        """Leave the device to replicas. Returns the bytes of it that are still in use, by whomever."""
        self._residency.offload(self._engines())
        return memory_used()

    def reload(self) -> int:
        """Come back to the device. Returns bytes in use, as `offload` does."""
        self._residency.reload(self._engines())
        return memory_used()

    def device(self) -> tuple[str, str]:
        """Ray's id of this node, and the GPUs of it that this rank sees."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.environ.get("CUDA_VISIBLE_DEVICES", "")

    def _engines(self) -> list[Any]:
        """Those of all models, frozen ones too."""
        engines = [model.engine for model in self._trained_models().values()]
        if self._reference is not None and self._reference.engine is not self._policy.engine:
            engines.append(self._reference.engine)
        return engines

    def _trained_models(self) -> dict[str, PackedModel]:
        return {"policy": self._policy} | ({"critic": self._critic} if self._critic else {})
