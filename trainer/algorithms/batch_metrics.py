"""What a step's batch looks like: rewards, lengths and signal, under verl's names, computed once.

Only sampled tokens count. `batch/all` is every rollout of the batch; `batch/trained` are those with an advantage other
than 0: the others have no gradient. A rise of the score of the latter may be the filter's doing, not the policy's.
"""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

from trainer.algorithms.rollout_correction.segments import BLOCK, Segments
from trainer.metrics import distribution


class BatchMetricsError(ValueError):
    """Columns that do not belong together."""


@torch.no_grad()
def batch_metrics(
    rewards: Float[torch.Tensor, " R"],
    group_index: Int[torch.Tensor, " R"],
    lengths: Int[torch.Tensor, " R"],
    prompt_lengths: Int[torch.Tensor, " R"],
    num_turns: Int[torch.Tensor, " R"],
    advantages: Float[torch.Tensor, " N"] | None = None,
    *,
    shaped_rewards: Float[torch.Tensor, " R"] | None = None,
    returns: Float[torch.Tensor, " N"] | None = None,
    values: Float[torch.Tensor, " N"] | None = None,
) -> dict[str, float]:
    """Metrics of R rollouts with N sampled tokens, `lengths` of them each. Lengths are in tokens.

    `rewards` are the graders' (critic/score); `shaped_rewards` what the advantages were made of (critic/rewards), the
    same if None. A rollout has solved its task if its reward, unshaped, is above 0. A group has signal if its shaped
    rewards differ. Nothing is said of what is None, or of an empty batch but its counts.

    Raises:
        BatchMetricsError: columns of lengths that do not fit.
    """
    shaped = rewards if shaped_rewards is None else shaped_rewards
    per_rollout = {"group_index": group_index, "lengths": lengths, "prompt_lengths": prompt_lengths}
    per_rollout |= {"num_turns": num_turns, "shaped_rewards": shaped}
    _check(per_rollout, len(rewards), "rollouts")
    per_token = {"advantages": advantages, "returns": returns, "values": values}
    columns = {name: column.detach().cpu() for name, column in per_token.items() if column is not None}
    _check(columns, int(lengths.sum()), "sampled tokens")

    metrics: dict[str, float] = {}
    for name, column in {
        "critic/score": rewards,
        "critic/rewards": shaped,
        "response_length": lengths,
        "prompt_length": prompt_lengths,
        "num_turns": num_turns,
    }.items():
        metrics |= distribution(name, column.double().tolist())
    metrics |= _group_metrics(rewards, shaped, group_index)
    metrics |= _subset("all", rewards, lengths)
    for name, column in columns.items():
        metrics |= _token_distribution(f"critic/{name}", column)
    if "advantages" in columns:
        trained, zeros = _trained(columns["advantages"], Segments.of_lengths(lengths))
        metrics |= _subset("trained", rewards[trained], lengths[trained])
        if len(columns["advantages"]):
            metrics["batch/zero_advantage_token_ratio"] = zeros / len(columns["advantages"])
    if "returns" in columns and "values" in columns and len(columns["returns"]) > 1:
        metrics["critic/vf_explained_var"] = _explained(columns["returns"], columns["values"])
    return metrics


def _check(columns: dict[str, torch.Tensor], expected: int, of: str) -> None:
    for name, column in columns.items():
        if len(column) != expected:
            raise BatchMetricsError(f"{name} has {len(column)} entries for {expected} {of}")


def _group_metrics(
    rewards: Float[torch.Tensor, " R"], shaped: Float[torch.Tensor, " R"], group_index: Int[torch.Tensor, " R"]
) -> dict[str, float]:
    groups: dict[int, list[tuple[float, float]]] = {}
    for group, reward, shape in zip(group_index.tolist(), rewards.tolist(), shaped.tolist(), strict=True):
        groups.setdefault(group, []).append((reward, shape))
    solved = [[reward > 0 for reward, _ in members] for members in groups.values()]
    counts = {
        "groups_with_signal": sum(len({shape for _, shape in members}) > 1 for members in groups.values()),
        "solve_none": sum(not any(members) for members in solved),
        "solve_some": sum(any(members) and not all(members) for members in solved),
        "solve_all": sum(all(members) for members in solved),
    }
    metrics = {"batch/rollouts": float(len(rewards)), "batch/groups": float(len(groups))}
    metrics |= {f"batch/{name}": float(count) for name, count in counts.items()}
    if groups:
        metrics |= {f"batch/{name}_ratio": count / len(groups) for name, count in counts.items()}
    return metrics


def _subset(name: str, rewards: Float[torch.Tensor, " R"], lengths: Int[torch.Tensor, " R"]) -> dict[str, float]:
    metrics = {f"batch/{name}/rollouts": float(len(rewards))}
    if len(rewards):
        metrics[f"batch/{name}/score_mean"] = float(rewards.double().mean())
        metrics[f"batch/{name}/response_length_mean"] = float(lengths.double().mean())
    return metrics


def _token_distribution(name: str, column: Float[torch.Tensor, " N"]) -> dict[str, float]:
    if not len(column):
        return {}
    total, lowest, highest = 0.0, math.inf, -math.inf
    for start in range(0, len(column), BLOCK):
        part = column[start : start + BLOCK]
        low, high = torch.aminmax(part)
        total += float(part.double().sum())
        lowest, highest = min(lowest, float(low)), max(highest, float(high))
    return {f"{name}/mean": total / len(column), f"{name}/max": highest, f"{name}/min": lowest}


def _trained(advantages: Float[torch.Tensor, " N"], segments: Segments) -> tuple[torch.Tensor, int]:
    """[R] bool: which rollouts have a token with an advantage other than 0; and how many tokens have none."""
    signals: NDArray[np.float64] = np.zeros(len(segments.owners))
    zeros = 0
    for block in segments.blocks():
        signal = advantages[block.tokens].abs()
        block.raise_maxima(signal, signals)
        zeros += len(signal) - int(np.count_nonzero(signal.numpy() > 0))
    return segments.spread(signals) > 0, zeros


def _explained(returns: Float[torch.Tensor, " N"], values: Float[torch.Tensor, " N"]) -> float:
    """1 - var(returns - values) / (var(returns) + 1e-5), both unbiased."""
    return 1 - _variance(returns, values) / (_variance(returns, None) + 1e-5)


def _variance(column: Float[torch.Tensor, " N"], minus: Float[torch.Tensor, " N"] | None) -> float:
    shift, total, squares = None, 0.0, 0.0
    for start in range(0, len(column), BLOCK):
        part = column[start : start + BLOCK].double()
        if minus is not None:
            part = part - minus[start : start + BLOCK]
        # an offset of the size of the mean leaves few digits to lose
        shift = float(part.mean()) if shift is None else shift
        part = part - shift
        total, squares = total + float(part.sum()), squares + float(part.dot(part))
    return (squares - total**2 / len(column)) / (len(column) - 1)
