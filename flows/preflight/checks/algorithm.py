"""Settings of the algorithm that are legal, and say something else than they do."""

from collections.abc import Iterator

from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, fatal, ok, unset, warn
from flows.preflight.registry import check
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, POLICY_LOSSES, load_builtin


@check("algorithm")
def algorithm(facts: Facts) -> Iterator[Finding]:
    """What the trainer itself warns of."""
    chosen = facts.config.algorithm
    warnings = facts.config.warnings
    for warning in warnings:
        field, _, rest = warning.partition(" ")
        why, _, mend = rest.rpartition("; ")
        yield warn(_full(field), "", f"{field} {why or rest}", mend or "leave it out")
    if not warnings:
        yield ok("algorithm", f"{chosen.adv_estimator}, {chosen.policy_loss}, {chosen.loss_agg}", "says what it does")


@check("critic")
def critic(facts: Facts) -> Iterator[Finding]:
    """A critic for estimators that ask for values, and for no other."""
    load_builtin()
    learner, estimator = facts.config.learner, facts.config.algorithm.adv_estimator
    asked = "values" in ADVANTAGE_ESTIMATORS[estimator].needs
    if asked and learner.critic is None:
        yield fatal("learner.critic", "null", f"the estimator {estimator} needs values", "set learner.critic: {}")
    elif learner.critic is not None and not asked:
        yield fatal(
            "learner.critic",
            "set",
            f"the estimator {estimator} asks for no values: memory and time of a second model, for nothing",
            "take it out, or set algorithm.adv_estimator: gae",
        )
    elif learner.critic is None:
        yield ok("learner.critic", "null", f"{estimator} needs none")
        return
    if learner.critic is None:
        return
    yield ok("learner.critic", "set", f"{estimator} whitens the advantages that it gives")
    if not learner.critic.lr_warmup_steps and not learner.lr_warmup_steps:
        yield warn(
            "learner.lr_warmup_steps",
            0,
            "the policy learns at full rate from a critic that knows nothing yet",
            "set it to 10 or more, and let the critic's warm-up be shorter",
        )
    if learner.micro_batch_tokens < facts.config.serving.window:
        yield warn(
            "learner.micro_batch_tokens",
            learner.micro_batch_tokens,
            "is less than the window, and policy and critic both compute such a row",
            "raise it to serving.window",
        )


@check("correction")
def correction(facts: Facts) -> Iterator[Finding]:
    """Where engine and trainer differ, something must weigh it: a weight, or the loss's own ratio."""
    load_builtin()
    chosen = facts.config.algorithm
    rollout, loss = chosen.rollout_correction, POLICY_LOSSES[chosen.policy_loss]
    if not facts.is_set("algorithm.rollout_correction.mode") and not facts.is_set(
        "algorithm.rollout_correction.weights"
    ):
        yield unset(
            "algorithm.rollout_correction",
            f"{rollout.mode}, {rollout.weights}",
            "differences of engine and trainer are weighed so",
            "set mode and weights",
        )
    if rollout.mode == "bypass" and not loss.options.get("ratio", True):
        yield fatal(
            "algorithm.rollout_correction.mode",
            "bypass",
            f"leaves the correction to the loss's ratio, and {loss.name} has none",
            "set policy_loss to one with a ratio (gspo, ppo), or mode: decoupled",
        )
    elif rollout.mode == "decoupled" and rollout.weights == "sequence":
        yield warn(
            "algorithm.rollout_correction.weights",
            "sequence",
            "the product over a long answer is near 0 for most rollouts: few of them carry the gradient",
            "set it to token",
        )
    elif rollout.mode == "decoupled" and rollout.weights == "none":
        yield warn(
            "algorithm.rollout_correction.weights",
            "none",
            "differences of engine and trainer are left as they are, but for rollouts that a rule rejects",
            "set it to token",
        )
    elif rollout.mode == "off":
        yield warn(
            "algorithm.rollout_correction.mode",
            "off",
            "differences of engine and trainer are measured and left as they are",
            "set it to decoupled",
        )
    else:
        yield ok("algorithm.rollout_correction.mode", rollout.mode, f"weighs by {rollout.weights}")
    patience = facts.config.fidelity.patience
    if patience is None:
        yield warn("fidelity.patience", "null", "no run is ever stopped for unfaithful steps", "set it to 3")
    else:
        yield ok(
            "fidelity.patience",
            patience,
            f"unfaithful steps (Pearson below {facts.config.fidelity.threshold:g}) end it",
        )


def _full(field: str) -> str:
    """The trainer names fields from its own section on."""
    known = ("learner.", "reward.", "rollout.")
    return field if field.startswith(known) else f"algorithm.{field}"
