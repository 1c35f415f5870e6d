"""What the learner's models say of the sampled tokens of a batch, without training."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float

from trainer.learner.collective import gather
from trainer.learner.config import LearnerConfig
from trainer.learner.errors import LearnerError
from trainer.learner.micro_batches import share_out
from trainer.learner.mini_batch import by_sample
from trainer.learner.packed_model import PackedModel
from trainer.learner.packing import PackedRow
from trainer.learner.samples import TrainSample

Models = Mapping[str, PackedModel | None]
"""`policy`, `reference` and `critic`."""


def score_samples(
    models: Models,
    samples: Sequence[TrainSample],
    columns: Sequence[str],
    temperature: float,
    rank: int,
    config: LearnerConfig,
) -> dict[str, Float[np.ndarray, " N"]]:
    """Columns of the trained tokens of `samples`, in their order; on rank 0 alone. A collective.

    Raises:
        LearnerError: no model here computes such a column.
    """
    found: dict[int, dict[str, np.ndarray]] = {sample.index: {} for sample in samples}
    shares = share_out(samples, config.sequence_groups, config.row_tokens, config.share_prompts)
    gpus = [torch.cuda.current_device()] if config.gpus_per_rank else []
    # dropout of adapters must not draw from what the next update draws from: a replay scores nothing
    with torch.no_grad(), torch.random.fork_rng(gpus):
        for row in shares.rows[rank // config.sp_size]:
            for name, values in _score_row(models, row, columns, temperature).items():
                for sample, part in zip(row.samples, by_sample(row, values), strict=True):
                    found[sample.index][name] = part.numpy()
    merged: dict[int, dict[str, np.ndarray]] = {}
    mine_to_tell = found if config.counts(rank) else {}
    for mine in gather({index: values for index, values in mine_to_tell.items() if values}):
        merged |= mine
    if rank or not samples:
        return {}
    return {name: np.concatenate([merged[sample.index][name] for sample in samples]) for name in columns}


def _score_row(models: Models, row: PackedRow, columns: Sequence[str], temperature: float) -> dict[str, torch.Tensor]:
    scores = {}
    policy, reference, critic = models["policy"], models["reference"], models["critic"]
    if {"old_logprobs", "sum_pi_squared"} & set(columns) and policy is not None:
        scores["old_logprobs"] = policy.forward(row, temperature)
        scores["sum_pi_squared"] = policy.head.sum_pi_squared
    if "ref_logprobs" in columns and reference is not None:
        scores["ref_logprobs"] = reference.forward(row, temperature)
    if "values" in columns and critic is not None:
        scores["values"] = critic.forward(row)
    missing = sorted(set(columns) - set(scores))
    if missing:
        raise LearnerError(f"no model here computes {missing}: values need learner.critic, ref_logprobs algorithm.kl")
    return {name: scores[name].float().cpu() for name in columns} if row.samples else {}
