"""The last stage of a step but its record: do engine and trainer agree, and if not, why?"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from prefect import task

from tasks.journal import step_label, write_json
from tasks.policy import staged
from tasks.run import RunRef
from trainer.fidelity.causes import Circumstances, suspicions
from trainer.fidelity.config import FidelityConfig
from trainer.fidelity.gate import stop_message, warning
from trainer.fidelity.judge import shortfalls, steps_below
from trainer.fidelity.tokens import COLUMNS, ComparedTokens
from trainer.learner.config import LearnerConfig
from trainer.serving.config import ServingConfig

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Under which names model configurations count their experts."""


@task(**staged("check_fidelity"))
async def check_fidelity(
    run: RunRef,
    label: str,
    step: int,
    metrics: dict[str, float],
    temperature: float,
    fidelity: FidelityConfig,
    learner: LearnerConfig,
    serving: ServingConfig,
    model: Path,
    sampled_ahead: bool = False,
) -> dict[str, Any]:
    """Judge the step by its metrics; for one that misses a limit, look for the cause and write fidelity.json.

    Of trials that were `sampled_ahead`, tokens of older weights are no evidence: they are meant to differ.

    Returns `metrics` and `warnings` for the step's record, and `stop`: the error that ends the run once the step is
    recorded, or None.
    """
    missed = shortfalls(metrics, fidelity)
    if not missed:
        # a step that measured nothing leaves the row as it is
        return {"metrics": {} if missed is None else {"fidelity/steps_below": 0.0}, "warnings": [], "stop": None}
    count = steps_below_before(run, step, fidelity) + 1
    folder = run.journal.stage_dir(label)
    scores = folder / "scores.parquet"
    tokens = ComparedTokens.read(
        pq.read_table(folder / "batch.parquet", columns=COLUMNS), pq.read_table(scores) if scores.is_file() else None
    )
    if sampled_ahead:
        tokens = tokens.of_version(step - 1)
    suspected = suspicions(tokens, _circumstances(run, step, temperature, learner, serving, model))
    write_json(folder / "fidelity.json", {"missed": missed, "steps": count, "causes": [asdict(s) for s in suspected]})
    stops = fidelity.patience is not None and count >= fidelity.patience
    return {
        "metrics": {"fidelity/steps_below": float(count)},
        "warnings": [warning(missed, count, suspected, tokens.scored, fidelity)],
        "stop": stop_message(missed, step, count, suspected, fidelity) if stops else None,
    }


def columns_for_evidence(run: RunRef, step: int, fidelity: FidelityConfig) -> list[str]:
    """What the learner must score before a step that follows an unfaithful one, or that may stop the run at once.

    After the update the weights that the log-probs belong to are gone, and scoring every step would cost a forward
    pass for nothing.
    """
    return ["old_logprobs"] if fidelity.patience == 1 or steps_below_before(run, step, fidelity) else []


def steps_below_before(run: RunRef, step: int, fidelity: FidelityConfig) -> int:
    """Steps in a row before `step` that missed a limit, by their records: a resumed run remembers them."""

    def records() -> Iterator[dict[str, float]]:
        for number in range(step - 1, 0, -1):
            record = run.journal.stage(step_label(number), "record.json")
            if record is None:
                return
            yield record["metrics"]

    return steps_below(records(), fidelity)


def _circumstances(
    run: RunRef, step: int, temperature: float, learner: LearnerConfig, serving: ServingConfig, model: Path
) -> Circumstances:
    before = step_label(step - 1)
    update, sync = run.journal.stage(before, "update.json") or {}, run.journal.stage(before, "sync.json") or {}
    # a fingerprint covers the type, so weights that were cast on the way have another one
    whole = learner.lora is None or learner.lora.sync == "merged"
    comparable = whole and learner.dtype == serving.dtype and sync.get("version") == step - 1
    return Circumstances(
        expected_version=step - 1,
        temperature=temperature,
        engine_dtype=serving.dtype,
        trainer_dtype=learner.dtype,
        replicas=int(sync.get("metrics", {}).get("rollout/replicas", serving.replicas)),
        experts=_experts(model),
        replays=learner.moe.replay,
        learner_fingerprint=update.get("fingerprint") if comparable else None,
        served_fingerprint=sync.get("fingerprint") if comparable else None,
    )


def _experts(model: Path) -> int:
    """How many experts a layer of the model has; 0 for a dense one."""
    path = model / "config.json"
    if not path.is_file():
        return 0
    config = json.loads(path.read_text())
    inner = config.get("text_config") or {}
    return max(int(source.get(name) or 0) for source in (config, inner) for name in _EXPERTS)
