"""The critic's gradient, mini-batch by mini-batch."""

from collections.abc import Sequence

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.value_loss import value_loss
from trainer.learner.config import LearnerConfig
from trainer.learner.mini_batch import MiniBatch
from trainer.learner.optimizer_step import OptimizerStep
from trainer.learner.packed_model import PackedModel
from trainer.learner.samples import TrainSample
from trainer.learner.totals import Totals


class CriticUpdate:
    """Trains the critic on this rank. `train` is a collective."""

    def __init__(self, model: PackedModel, rank: int, config: LearnerConfig, algorithm: AlgorithmConfig) -> None:
        self.model, self.rank, self.config, self.algorithm = model, rank, config, algorithm
        self.optimizer = OptimizerStep(model.engine, "critic", config.ranks)

    def train(self, parts: Sequence[Sequence[TrainSample]], totals: Totals) -> None:
        """An optimizer step for each mini-batch, in every epoch.

        Raises:
            NonFiniteError: see `OptimizerStep.take`.
        """
        batches = [MiniBatch.of(samples, samples, self.rank, self.config) for samples in parts]
        for part in batches * self.config.ppo_epochs:
            if part.rows:
                self._step(part, totals)

    def _step(self, part: MiniBatch, totals: Totals) -> None:
        trained = 0
        for row in part.rows:
            values = self.model.forward(row)
            loss = values.sum() * 0.0
            if row.samples:
                old, returns = (row.columns[name].to(values.device) for name in ("values", "returns"))
                outputs = value_loss(values, old, returns, self.algorithm)
                loss = outputs.losses.sum() / part.counts.tokens
                means = {name: column.sum() / part.counts.tokens for name, column in outputs.metrics.items()}
                totals.add_shares({"critic/vf_loss": loss} | means)
            self.optimizer.backward(loss)
            trained += len(values) if self.config.counts(self.rank) else 0
        part.require_complete(trained)
        applied = self.optimizer.take()
        totals.step(self.model.engine, "critic/grad_norm", applied)
