"""The block that says at a glance what a run is: to be read before it is started, and kept beside its results."""

from collections.abc import Sequence
from pathlib import Path

from flows.configuration import Resolved
from flows.configuration.redaction import Redactor
from flows.configuration.schema import axis_keys
from flows.preflight.facts import Facts
from tasks.journal import Journal
from trainer.model import ModelError


def run_block(resolved: Resolved, facts: Facts, path: Path) -> list[tuple[str, str]]:
    """Lines of (what, text), without secrets."""
    config = resolved.config
    rollout, learner, serving, algorithm = config.rollout, config.learner, config.serving, config.algorithm
    schedule, evaluation, correction = config.schedule, config.evaluation, config.algorithm.rollout_correction
    axes = [f"{key.partition('.')[2]} {resolved.value(key) or '-'}" for key in axis_keys()]
    mini = "all of it, one on-policy update" if learner.mini_batch_size is None else f"{learner.mini_batch_size} trials"
    kl = (
        "none"
        if algorithm.kl.place == "none"
        else f"{algorithm.kl.estimator} x {algorithm.kl.coef:g} in {algorithm.kl.place}"
    )
    lines = [
        ("config", f"{path}, identity {config.identity()}"),
        ("layers", ", ".join(layer.name for layer in resolved.layers if layer.values) or "defaults only"),
        ("run", f"{config.project}/{config.experiment}"),
        ("profiles", ", ".join(axes)),
        ("model", f"{config.model.path} ({_kind(facts)})"),
        ("parsers", f"tool calls {serving.tool_call_parser or 'none'}, thinking {serving.reasoning_parser or 'none'}"),
        ("tasks", f"train {config.data.train}, held out {config.data.heldout}{_only(config.data.difficulty)}"),
        ("agent", f"{config.scaffold.name}, {config.scaffold.max_turns} turns, in {config.sandbox.backend}"),
        (
            "topology",
            f"learner {learner.ranks} ranks on {'GPUs' if learner.gpus_per_rank else 'CPUs'}, engine "
            f"{serving.replicas} "
            f"replicas x {serving.tensor_parallel} devices",
        ),
        (
            "batch",
            f"{rollout.tasks_per_step} tasks x {rollout.attempts_per_task} attempts = {facts.trials} trials, "
            "mini-batch: "
            f"{mini}; rows of {learner.row_tokens} tokens"
            + (f", each over {learner.sp_size} ranks" if learner.sp_size > 1 else ""),
        ),
        ("context", f"window {serving.window} tokens, answers of at most {rollout.max_tokens_per_turn}"),
        (
            "algorithm",
            f"{algorithm.adv_estimator}, {algorithm.policy_loss}, {algorithm.loss_agg}; lr {learner.lr:g} "
            f"{learner.lr_schedule} after {learner.lr_warmup_steps}; KL {kl}",
        ),
        (
            "rollout",
            f"temperature {rollout.temperature:g}, {rollout.concurrency} trials at once; correction {correction.mode}, "
            f"{correction.weights} up to {correction.high:g}",
        ),
        (
            "schedule",
            f"{schedule.total_steps} steps, a checkpoint every {schedule.save_freq} (newest "
            f"{schedule.keep_checkpoints} kept), "
            f"scores every {schedule.test_freq}{', before' if schedule.eval_before else ''}"
            f"{', after' if schedule.eval_after else ''} at temperature {evaluation.temperature:g}, "
            f"{evaluation.attempts_per_task} attempts",
        ),
        ("journal", str(Journal(facts.root / config.project / config.experiment).root)),
    ]
    redactor = Redactor()
    return [(what, redactor.text(text)) for what, text in lines]


def _kind(facts: Facts) -> str:
    try:
        model = facts.model
    except ModelError:
        return "unusable"
    if model is None:
        return "not here yet"
    return f"{'mixture of experts' if model.is_mixture else 'dense'}, {model.parameters / 1e6:,.0f} M parameters"


def _only(difficulty: Sequence[str]) -> str:
    return f", only {', '.join(difficulty)}" if difficulty else ""
