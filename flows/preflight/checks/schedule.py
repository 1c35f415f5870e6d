"""The silent pitfalls of long runs: rates, saving, and scoring."""

from collections.abc import Iterator

from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, ok, unset, warn
from flows.preflight.registry import check


@check("learning-rate")
def learning_rate(facts: Facts) -> Iterator[Finding]:
    """It rises over its warm-up, then stays or falls; nothing lets it fall to 0."""
    learner, steps = facts.config.learner, facts.config.schedule.total_steps
    if not facts.is_set("learner.lr"):
        yield unset("learner.lr", learner.lr, "what holds for one model does not for another", "set it")
    if learner.lr_warmup_steps > steps:
        yield warn(
            "learner.lr_warmup_steps",
            learner.lr_warmup_steps,
            f"the run has {steps} steps, so that the rate never arrives",
            "lower it",
        )
    else:
        yield ok("learner.lr", learner.lr, f"{learner.lr_schedule} after {learner.lr_warmup_steps} of {steps} steps")
    if learner.lr > 1e-4:
        yield warn(
            "learner.lr", learner.lr, "is large for reinforcement learning, and policies collapse of it", "lower it"
        )


@check("saving")
def saving(facts: Facts) -> Iterator[Finding]:
    """How much a crash may cost."""
    schedule = facts.config.schedule
    for key in ("total_steps", "save_freq"):
        if not facts.is_set(f"schedule.{key}"):
            yield unset(f"schedule.{key}", getattr(schedule, key), "decides how long, and what a crash costs", "set it")
    if schedule.save_freq > schedule.total_steps:
        yield warn(
            "schedule.save_freq",
            schedule.save_freq,
            f"is more than the {schedule.total_steps} steps: only the last has a "
            "checkpoint, and the updates before are replayed after a crash",
            "lower it",
        )
    else:
        yield ok("schedule.save_freq", schedule.save_freq, f"steps between checkpoints, of {schedule.total_steps}")


@check("scoring")
def scoring(facts: Facts) -> Iterator[Finding]:
    """A run that is never scored on held-out tasks shows nothing."""
    schedule, evaluation = facts.config.schedule, facts.config.evaluation
    if not facts.is_set("schedule.test_freq"):
        yield unset("schedule.test_freq", schedule.test_freq, "steps between evaluations", "set it; 0 for none")
    if not schedule.test_freq and not schedule.eval_before and not schedule.eval_after:
        yield warn(
            "schedule.test_freq",
            0,
            "with eval_before and eval_after off nothing is ever scored on held-out tasks",
            "turn on eval_before and eval_after",
        )
    elif not schedule.eval_before:
        yield warn("schedule.eval_before", False, "without a score before, no gain can be told", "turn it on")
    else:
        yield ok("schedule.eval_before", True, "what is gained is told against the beginning")
    if evaluation.temperature != facts.config.rollout.temperature:
        yield warn(
            "evaluation.temperature",
            evaluation.temperature,
            f"tasks are scored at another temperature than trained at ({facts.config.rollout.temperature:g})",
            "make them equal, or know that curves of both do not compare",
        )
    if evaluation.top_p < 1:
        yield warn(
            "evaluation.top_p",
            evaluation.top_p,
            "tasks are scored from a truncated distribution, which was not trained",
            "set it to 1",
        )
