"""What shows in times: steps that take longer than they did, and which part of them does."""

import statistics

from flows.diagnosis.causes import LikelyCause
from flows.diagnosis.facts import RunFacts
from flows.diagnosis.signatures import Series, Signature, signature
from flows.diagnosis.state import RunState
from flows.preflight.findings import Level

SLOWER = 1.5
_ROW, _HISTORY, _SHOWN = 3, 5, 6
_PARTS = ("timing_s/gen", "timing_s/update_actor", "timing_s/update_weights")


@signature("slowdown")
def slowdown(facts: RunFacts, state: RunState) -> Signature | None:
    """Each of the last three steps took half as long again as this run's own earlier steps, in the median."""
    step = facts.series("timing_s/step")
    usual = _usual(step)
    if usual is None or any(value < SLOWER * usual for _, value in step[-_ROW:]):
        return None
    evidence: dict[str, Series] = {"timing_s/step": step[-_SHOWN:]}
    grown = []
    for name in _PARTS:
        series = facts.series(name)
        before = _usual(series)
        if before is not None:
            grown.append((statistics.median(v for _, v in series[-_ROW:]) - before, name, before, series))
    if not grown:
        return None
    _, name, before, series = max(grown)
    evidence[name] = series[-_SHOWN:]
    now = statistics.median(value for _, value in series[-_ROW:])
    causes = [cause for cause in _causes(facts, name, evidence) if cause is not None]
    told = f"{name} has grown most: {before:.0f} s before, {now:.0f} s now"
    claim = f"steps take {statistics.median(v for _, v in step[-_ROW:]):.0f} s, where they took {usual:.0f} s"
    return Signature("slowdown", Level.WARN, claim, evidence, causes, [told])


def _usual(series: Series) -> float | None:
    """The median of the values before the last few, None where there are too few of them."""
    before = [value for _, value in series[:-_ROW]]
    return statistics.median(before) if len(before) >= _HISTORY else None


def _causes(facts: RunFacts, part: str, evidence: dict[str, Series]) -> list[LikelyCause | None]:
    if part == "timing_s/gen":
        return [
            _grew(facts, evidence, "response_length/mean", "trials sample more tokens", "see its report"),
            _grew(facts, evidence, "num_turns/mean", "trials have more turns", "lower scaffold.max_turns"),
            _grew(facts, evidence, "timing_s/agent_loop/sandbox_start/mean", "sandboxes start more slowly",
                  "testgrad clean; look at disk and image store"),
            _grew(facts, evidence, "timing_s/agent_loop/verifier/mean", "grading takes longer",
                  "the machine is loaded, or patches make tests slow: see the slowest trials of the report"),
            _grew(facts, evidence, "timing_per_token_ms/gen", "a token takes longer to sample",
                  "somebody else uses the machine, or the cache is full: read logs/EXPERIMENT_vllm.log"),
        ]  # fmt: skip
    if part == "timing_s/update_actor":
        return [
            _grew(facts, evidence, "perf/total_num_tokens", "batches hold more tokens", "that is the price of length"),
            _grew(facts, evidence, "timing_per_token_ms/update_actor", "a token takes longer to learn from",
                  "somebody else uses the machine, or memory is short: testgrad check"),
        ]  # fmt: skip
    return [
        LikelyCause("syncing the weights takes longer", "timing_s/update_weights", "look at /dev/shm: testgrad check")
    ]


def _grew(facts: RunFacts, evidence: dict[str, Series], metric: str, cause: str, mend: str) -> LikelyCause | None:
    """The cause, if the metric has grown with the step."""
    series = facts.series(metric)
    before = _usual(series)
    if before is None or before <= 0:
        return None
    now = statistics.median(value for _, value in series[-_ROW:])
    if now < 1.25 * before:
        return None
    evidence[metric] = series[-_SHOWN:]
    return LikelyCause(cause, f"{metric} {before:.4g} before, {now:.4g} now", mend)
