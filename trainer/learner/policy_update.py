"""The policy's gradient, mini-batch by mini-batch."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from trainer.algorithms.aggregation import aggregate
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs
from trainer.algorithms.registry import KL_ESTIMATORS, POLICY_LOSSES
from trainer.algorithms.rollout_correction.correct import correct
from trainer.learner.collective import gather
from trainer.learner.config import LearnerConfig
from trainer.learner.mini_batch import MiniBatch, by_sample
from trainer.learner.optimizer_step import OptimizerStep
from trainer.learner.packed_model import PackedModel
from trainer.learner.samples import TrainSample
from trainer.learner.totals import Totals


class PolicyUpdate:
    """Trains the policy on this rank. Methods that compute are collectives."""

    def __init__(self, model: PackedModel, rank: int, config: LearnerConfig, algorithm: AlgorithmConfig) -> None:
        self.model, self.rank, self.config, self.algorithm = model, rank, config, algorithm
        self.optimizer = OptimizerStep(model.engine, "policy", config.ranks)
        self._select = POLICY_LOSSES[algorithm.policy_loss].options.get("select")

    def mini_batch(self, samples: Sequence[TrainSample]) -> MiniBatch:
        """This rank's part of a mini-batch."""
        return MiniBatch.of(samples, [sample for sample in samples if self._trains(sample)], self.rank, self.config)

    def train(self, parts: Sequence[MiniBatch], temperature: float, totals: Totals, seed: int) -> None:
        """An optimizer step for each mini-batch, in every epoch.

        Raises:
            NonFiniteError: see `OptimizerStep.take`.
        """
        if len(parts) * self.config.ppo_epochs > 1 or self._select is not None:
            # the policy that ratios compare with is the one before the first step, for all mini-batches and epochs
            for part in parts:
                self.remember_old(part, temperature, seed)
        for epoch in range(self.config.ppo_epochs):
            for part in parts:
                self.step(part, temperature, totals, measure=epoch == 0)

    def remember_old(self, part: MiniBatch, temperature: float, seed: int) -> None:
        """Keep the log-probs of the present policy, and what the loss selects by them over the whole mini-batch."""
        with torch.no_grad():
            old = [self.model.forward(row, temperature) for row in part.rows]
        part.old_logprobs = list(old)
        if self._select is None:
            return
        mine = {
            sample.index: values.cpu()
            for row, logprobs in zip(part.rows, old, strict=True)
            for sample, values in zip(row.samples, by_sample(row, logprobs), strict=True)
        }
        everywhere: dict[int, torch.Tensor] = {}
        for found in gather(mine):
            everywhere |= found
        known = [sample for sample in part.samples if sample.index in everywhere]
        if not known:
            return
        advantages = torch.from_numpy(np.concatenate([sample.columns["advantages"] for sample in known]))
        logprobs = torch.cat([everywhere[sample.index] for sample in known])
        chosen = self._select(advantages, logprobs, self.algorithm, seed).split(
            [len(everywhere[s.index]) for s in known]
        )
        by_index = {sample.index: values for sample, values in zip(known, chosen, strict=True)}
        part.selected = [
            torch.cat([by_index[s.index] for s in row.samples]) if row.samples else None for row in part.rows
        ]

    def step(self, part: MiniBatch, temperature: float, totals: Totals, measure: bool) -> None:
        """One optimizer step; none if nothing of the mini-batch has a gradient."""
        if not part.rows:
            return
        trained = 0
        for place, row in enumerate(part.rows):
            logprobs = self.model.forward(row, temperature)
            loss = self._loss(part, place, logprobs, totals, measure) if row.samples else logprobs.sum() * 0.0
            self.optimizer.backward(loss)
            trained += len(logprobs) if self.config.counts(self.rank) else 0
        part.require_complete(trained)
        applied = self.optimizer.take()
        totals.step(self.model.engine, "actor/grad_norm", applied)

    def _trains(self, sample: TrainSample) -> bool:
        """Whether a rollout has a gradient. One without counts in the normaliser, but need not be computed."""
        # a choice among all tokens of the mini-batch needs to see them all
        pulls = self.algorithm.kl.in_loss or self.algorithm.entropy_coeff > 0 or self._select is not None
        return sample.trained_tokens > 0 and (pulls or sample.has_signal)

    def _loss(
        self, part: MiniBatch, place: int, logprobs: Float[torch.Tensor, " N"], totals: Totals, measure: bool
    ) -> Float[torch.Tensor, ""]:
        """A row's share of the loss of its mini-batch."""
        row, config, device = part.rows[place], self.algorithm, logprobs.device
        old = part.old_logprobs[place]
        # one step on fresh rollouts: the policy that sampled is the one that is trained, and the ratio is exactly 1
        trainer = logprobs.detach() if old is None else old
        rollout = row.columns["rollout_logprobs"].to(device)
        sample_index, count = row.sample_index.to(device), len(row.samples)
        correction = correct(trainer, rollout, sample_index, count, config.rollout_correction)
        selected = part.selected[place]
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
            return aggregate(losses, sample_index, count, part.counts, config)

        shares = {"actor/pg_loss": share(correction.apply(outputs.losses))}
        loss = shares["actor/pg_loss"]
        entropy, top1 = self.model.head.entropy, self.model.head.top1
        if config.entropy_coeff:
            shares["actor/entropy_loss"] = share(entropy)
            loss = loss - config.entropy_coeff * shares["actor/entropy_loss"]
        if config.kl.in_loss:
            divergence = KL_ESTIMATORS[config.kl.estimator].function(logprobs, row.columns["ref_logprobs"].to(device))
            shares["actor/kl_loss"] = share(divergence)
            loss = loss + config.kl.coef * shares["actor/kl_loss"]
        totals.add(len(row.target_ids), outputs.metrics | {"actor/entropy": entropy, "actor/top1": top1}, shares)
        if measure:
            totals.compare(trainer, rollout, row, correction)
        return loss
