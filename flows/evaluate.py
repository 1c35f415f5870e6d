"""Score a policy on held-out tasks, through the same trials, sandbox and grading as training."""

from pathlib import Path
from typing import Any

from prefect import flow

from flows.open_run import read_run_config
from flows.step import both
from harness.endpoint import EndpointConfig
from harness.scaffolds.mixed import for_evaluation
from tasks.journal import eval_label
from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.run_trials import run_trials
from tasks.sample_pool import sample_heldout
from tasks.snapshots import record_snapshots
from tasks.summarise_evaluation import summarise_evaluation
from tasks.verify_trials import verify_trials
from trainer.rollout import Sampling


@flow(name="evaluate", flow_run_name="evaluate-{step}", persist_result=True, result_serializer="json")
async def evaluate(
    run: RunRef,
    step: int,
    model: Path,
    endpoint: EndpointConfig | None = None,
    trained: RunRef | None = None,
    trained_step: int | None = None,
) -> dict[str, Any]:
    """Score the weights that the run's replicas serve, those after step `step`, or what an endpoint serves.

    Args:
        model: Folder of the served model's tokenizer; of no use with an endpoint.
        endpoint: The policy, instead of the run's replicas.
        trained: The training run that the weights come from, in MLflow the evaluation's parent; None for none.
        trained_step: After which of its steps, if that is not `step`.
    """
    config, label = read_run_config(run), eval_label(step)
    await sample_heldout(run, label, config.data, config.evaluation)
    await record_snapshots(run, label)
    emit(Event("stage", label, "evaluation"))
    sampling = Sampling(config.evaluation.temperature, config.evaluation.top_p, config.rollout.max_tokens_per_turn)
    await both(
        run_trials(
            run, label, step, model, config.serving, sampling, config.sandbox, for_evaluation(config.scaffold),
            config.budgets, config.evaluation.concurrency or config.rollout.concurrency, config.rollout.infra_attempts,
            endpoint=endpoint,
        ),
        verify_trials(
            run, label, config.sandbox, config.verifier, config.budgets, config.rollout.infra_attempts
        ),
    )  # fmt: skip
    return await summarise_evaluation(run, label, step, config.tracing, trained, trained_step)
