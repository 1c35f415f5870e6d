"""Stage 6 of a step: from rewards to advantages, group by group.

A trial counts once, in however many segments it is trained: its tokens are those of its segments one after the other,
and its advantage is spread over all of them.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from prefect import task

from tasks.groups import to_the_end
from tasks.journal import step_label, write_json, write_table
from tasks.policy import staged
from tasks.run import RunRef
from trainer.algorithms.advantages.base import AdvantageInputs, number_groups
from trainer.algorithms.batch_metrics import batch_metrics
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.kl import next_coef
from trainer.algorithms.kl_config import KLConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, KL_ESTIMATORS
from trainer.algorithms.staleness import StalenessConfig, age_metrics, age_weights, ages
from trainer.batch import BATCH_SCHEMA, sampled, sampled_lengths, sum_by_trial, trials_of, with_advantages
from trainer.metrics import distribution

DONE = "advantages.json"


@task(**staged("compute_advantages", timeout=3600))
async def compute_advantages(
    run: RunRef, label: str, step: int, algorithm: AlgorithmConfig, staleness: StalenessConfig | None = None
) -> dict[str, float]:
    """Add the columns that the learner trains on to batch.parquet. Returns metrics of the batch.

    With `staleness`, for trials that were sampled ahead, tokens beyond its bound weigh less.
    """
    # in a thread: trials may run in this loop
    return await to_the_end(_compute, run, label, step, algorithm, staleness)


def _compute(
    run: RunRef, label: str, step: int, algorithm: AlgorithmConfig, staleness: StalenessConfig | None
) -> dict[str, float]:
    folder = run.journal.stage_dir(label)
    known = run.journal.stage(label, DONE)
    if known is not None and "advantages" in pq.read_schema(folder / "batch.parquet").names:
        return dict(known["metrics"])
    batch = pq.read_table(folder / "batch.parquet").select(BATCH_SCHEMA.names)
    scores = _read_scores(folder / "scores.parquet")
    coef = _reward_kl_coef(run, step, algorithm.kl)
    trials = trials_of(batch)
    inputs, divergence = advantage_inputs(batch, scores, algorithm, coef)
    result = ADVANTAGE_ESTIMATORS[algorithm.adv_estimator].function(inputs, algorithm)
    learned = {"returns": result.returns} | {name: scores.get(name) for name in ("values", "ref_logprobs")}
    columns = {name: column.numpy() for name, column in learned.items() if column is not None}
    advantages, age = result.advantages.numpy(), {}
    if staleness is not None:
        behind = ages(sampled(batch, "weight_versions"), step - 1)
        advantages, age = advantages * age_weights(behind, staleness), age_metrics(behind, staleness)
    write_table(folder / "batch.parquet", with_advantages(batch, advantages, **columns))
    metrics = batch_metrics(
        _column(trials, "score"),
        inputs.group_index,
        inputs.lengths,
        _column(trials, "prompt_length"),
        torch.from_numpy(sum_by_trial(batch, batch.column("num_turns").to_numpy())),
        torch.from_numpy(advantages),
        shaped_rewards=inputs.scores,
        returns=result.returns,
        values=inputs.values,
    )
    lengths = pc.list_value_length(batch.column("token_ids")).to_pylist()
    metrics |= (
        age
        | distribution("global_seqlen", lengths)
        | {
            "perf/total_num_tokens": float(sum(lengths)),
            "batch/segments": float(batch.num_rows),
        }
    )
    kl_state: dict[str, Any] = {"coef": coef} if algorithm.kl.in_reward else {}
    if divergence is not None:
        kl_state |= {"measured": float(divergence.mean()), "rollouts": trials.num_rows}
        metrics |= {"actor/reward_kl_penalty": kl_state["measured"], "actor/reward_kl_penalty_coeff": coef}
    # last, for it says that the batch is whole
    write_json(folder / DONE, {"metrics": metrics, "kl": kl_state})
    return metrics


def advantage_inputs(
    batch: pa.Table, scores: dict[str, torch.Tensor], algorithm: AlgorithmConfig, kl_coef: float
) -> tuple[AdvantageInputs, torch.Tensor | None]:
    """What the estimator sees of the trials, and the divergence of each sampled token where it is in the reward.

    Raises:
        ValueError: trials with differently named rewards.
    """
    divergence = None
    if algorithm.kl.in_reward and batch.num_rows:
        estimator = KL_ESTIMATORS[algorithm.kl.estimator].function
        divergence = estimator(scores["old_logprobs"], scores["ref_logprobs"])
    trials = trials_of(batch)
    baselines = trials.column("greedy_baseline")
    inputs = AdvantageInputs(
        rewards=_column(trials, "reward"),
        group_index=number_groups(trials.column("group_id").to_pylist()),
        lengths=torch.from_numpy(sum_by_trial(batch, sampled_lengths(batch))).long(),
        named_rewards=_named_rewards(trials),
        baselines=None if baselines.null_count else _column(trials, "greedy_baseline"),
        penalties=None if divergence is None else kl_coef * divergence,
        values=scores.get("values"),
        old_logprobs=scores.get("old_logprobs"),
        sum_pi_squared=scores.get("sum_pi_squared"),
    )
    return inputs, divergence


def _column(table: pa.Table, name: str) -> torch.Tensor:
    return torch.tensor(table.column(name).to_pylist(), dtype=torch.float64)


def _named_rewards(trials: pa.Table) -> dict[str, torch.Tensor]:
    rows = [dict(row or {}) for row in trials.column("named_rewards").to_pylist()]
    names = sorted(set().union(*rows))
    for row, session in zip(rows, trials.column("session_id").to_pylist(), strict=True):
        if sorted(row) != names:
            raise ValueError(
                f"{session}: named rewards {sorted(row)}, but other trials have {names}; "
                "reward.function must return the same names for every trial"
            )
    return {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in names}


def _read_scores(path: Any) -> dict[str, torch.Tensor]:
    if not path.is_file():
        return {}
    table = pq.read_table(path)
    return {name: torch.from_numpy(table.column(name).to_numpy().copy()) for name in table.column_names}


def _reward_kl_coef(run: RunRef, step: int, kl: KLConfig) -> float:
    """The weight of this step, from what the step before measured: the journal is the controller's memory."""
    before = run.journal.stage(step_label(step - 1), DONE) if step > 1 else None
    state = (before or {}).get("kl")
    if kl.controller == "fixed" or not state:
        return kl.coef
    if "measured" not in state:  # the batch was empty
        return float(state["coef"])
    return next_coef(state["coef"], state["measured"], state["rollouts"], kl)
