"""What may make engine and trainer disagree, and how each would show in a batch.

A cause is a function of the compared tokens and of what is known of the step. It returns a `Suspicion` or None. Its
strength says how much of the mismatch the cause explains, from 0 to 1, so that causes can be ranked; a fact that leaves
no doubt has strength 1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from trainer.fidelity.tokens import ComparedTokens

FIRST_TOKENS = 4
"""Tokens at the beginning of an answer that still feel a wrong prompt most."""

ROUNDING = 0.25
"""Mean |difference| of log-probs up to which rounding may be the reason: bf16 gives hundredths, fp8 about a tenth."""

_SPLIT = 5.0
"""Trials fall into two kinds if no trial's mean |difference| lies within a gap of this factor."""

_FEWEST_TOKENS = 64

_NOT_ELSEWHERE = 0.4
"""Strength of what is suspected by size alone: more than a weak trace of another cause, less than a clear one."""


@dataclass(frozen=True)
class Circumstances:
    """What is known of a step besides its tokens.

    `expected_version` is the weight version that its trials should have sampled with. The fingerprints are of those
    weights, in the learner and as the replicas confirmed them; None where unknown or not comparable. A layer chooses
    among `experts`; `replays` if the learner takes the engine's choices, where the batch holds them.
    """

    expected_version: int
    temperature: float
    engine_dtype: str
    trainer_dtype: str
    replicas: int = 1
    experts: int = 0
    replays: bool = False
    learner_fingerprint: str | None = None
    served_fingerprint: str | None = None


@dataclass(frozen=True)
class Suspicion:
    """A possible cause: how much it explains, what speaks for it, and what would mend it."""

    cause: str
    strength: float
    evidence: str
    mend: str


Cause = Callable[[ComparedTokens, Circumstances], tuple[float, str] | None]

CAUSES: dict[str, Cause] = {}
MENDS: dict[str, str] = {}


def cause(name: str, mend: str) -> Callable[[Cause], Cause]:
    """Enter a cause; its function returns (strength, evidence), or None if nothing speaks for it."""

    def enter(function: Cause) -> Cause:
        CAUSES[name], MENDS[name] = function, mend
        return function

    return enter


def suspicions(tokens: ComparedTokens, circumstances: Circumstances) -> list[Suspicion]:
    """All causes that something speaks for, the most likely first."""
    found = []
    for name, function in CAUSES.items():
        result = function(tokens, circumstances)
        if result is not None and result[0] > 0:
            found.append(Suspicion(name, result[0], result[1], MENDS[name]))
    return sorted(found, key=lambda suspicion: -suspicion.strength)


@cause(
    "version",
    "The replicas sampled with other weights than those that the update starts from: look at sync.json of the step "
    "before, and restart the run, which syncs the replicas again",
)
def version(tokens: ComparedTokens, known: Circumstances) -> tuple[float, str] | None:
    """Other weights: by fingerprint, by the tokens' own version, by a split between trials, or by sheer size."""
    ours, theirs = known.learner_fingerprint, known.served_fingerprint
    if ours is not None and theirs is not None and ours != theirs:
        return 1.0, (
            f"the weights of version {known.expected_version} have fingerprint {ours[:12]} in the learner, "
            f"but the replicas confirmed {theirs[:12]}"
        )
    wrong = tokens.versions != known.expected_version
    if wrong.any():
        seen = ", ".join(str(v) for v in np.unique(tokens.versions[wrong]).tolist()[:5])
        text = (
            f"{wrong.mean():.0%} of the sampled tokens carry weight version {seen}, "
            f"the step's is {known.expected_version}"
        )
        if wrong.all():
            return 1.0, text
        strength = tokens.carried(wrong) if tokens.scored else float(wrong.mean())
        return strength, f"{text}; they carry {_part(tokens, wrong)} of the mismatch" if tokens.scored else text
    if not tokens.scored:
        return None
    split = _split_between_trials(tokens) if known.replicas > 1 else None
    if split is not None:
        return split
    size = float(np.abs(tokens.difference).mean())
    if size > ROUNDING:
        return _NOT_ELSEWHERE, (
            f"log-probs differ by {size:.2f} on average, too much for rounding, although every token carries "
            f"weight version {known.expected_version}: the weights behind that number are others"
        )
    return None


@cause(
    "temperature",
    "The trainer divides its logits by rollout.temperature; let the engine sample at just that, with log-probs "
    "taken after temperature, and without top_p, top_k or penalties of its own",
)
def temperature(tokens: ComparedTokens, known: Circumstances) -> tuple[float, str] | None:
    """One scale of the log-odds explains the difference.

    Between two tokens the log-odds are their logits' difference over the temperature, so those of engine and trainer
    lie on a line whose slope is the ratio of the temperatures. Among many tokens that still holds nearly.
    """
    if not tokens.scored:
        return None
    x, y = _log_odds(tokens.trainer), _log_odds(tokens.engine)
    usable = np.isfinite(x) & np.isfinite(y)
    if usable.sum() < _FEWEST_TOKENS:
        return None
    x, y = x[usable], y[usable]
    slope = _symmetric_slope(x, y)
    if not np.isfinite(slope) or slope <= 0 or abs(np.log(slope)) < 0.03:
        return None
    before, after = y - x, y - slope * x
    spread = np.abs(before - np.median(before)).mean()
    explained = 1 - float(np.abs(after - np.median(after)).mean() / spread) if spread > 0 else 0.0
    if explained <= 0:
        return None
    return explained, (
        f"the engine's log-probs are those of temperature {known.temperature / slope:.2f}, the trainer's of "
        f"{known.temperature:g}: that explains {explained:.0%} of the mismatch"
    )


@cause(
    "template",
    "Engine and trainer do not see the same tokens before an answer: compare the prompt that the engine was given "
    "(the proxy's trajectory.json) with the batch's token_ids, and look for a doubled BOS or a tail that is missing",
)
def template(tokens: ComparedTokens, known: Circumstances) -> tuple[float, str] | None:
    """The mismatch sits where answers, or whole rollouts, begin, and fades after."""
    if not tokens.scored:
        return None
    first = tokens.position < FIRST_TOKENS
    where, chosen, strength = "answers", first, tokens.carried(first)
    opening = first & (tokens.answer == 0)
    if tokens.carried(opening) > 0.85 * strength:  # nearly all of it: later answers begin well
        where, chosen, strength = "rollouts", opening, tokens.carried(opening)
    return strength, (
        f"the first {FIRST_TOKENS} tokens of {where}, {chosen.mean():.0%} of all, "
        f"carry {_part(tokens, chosen)} of the mismatch"
    )


@cause(
    "routing",
    "Let the engine report the experts it chose and replay them in the learner; without that a mixture of experts "
    "takes other experts for some tokens wherever two are nearly tied",
)
def routing(tokens: ComparedTokens, known: Circumstances) -> tuple[float, str] | None:
    """A mixture of experts whose choices are not, or not all, replayed."""
    if known.experts < 2 or not len(tokens.routed):
        return None
    missing = ~(tokens.routed & known.replays)
    if not missing.any():
        return None
    if missing.all():
        text = f"the model chooses among {known.experts} experts, and no token's choice is replayed"
        if not tokens.scored:
            return 0.5, text
        amount = np.abs(tokens.difference)
        worst = amount >= np.quantile(amount, 0.95)
        # a changed expert changes a few tokens much, where rounding changes all of them a little
        return max(0.5, tokens.carried(worst)), f"{text}; the worst 5% carry {_part(tokens, worst)} of the mismatch"
    text = f"the choice of experts is replayed for {1 - missing.mean():.0%} of the tokens only"
    if not tokens.scored:
        return 0.5, text
    return tokens.carried(missing), f"{text}; the others carry {_part(tokens, missing)} of the mismatch"


@cause(
    "numerics",
    "Nothing is wrong but precision: raise serving.dtype and learner.dtype to float32, or make them equal, or lower "
    "fidelity.threshold to what these types can give, and correct for the rest by algorithm.rollout_correction",
)
def numerics(tokens: ComparedTokens, known: Circumstances) -> tuple[float, str] | None:
    """A small difference on all tokens. It explains what no other cause does, so it is never strong."""
    types = f"the engine computes in {known.engine_dtype}, the trainer in {known.trainer_dtype}"
    if not tokens.scored:
        return (0.1, types) if known.engine_dtype != known.trainer_dtype else None
    amount = np.abs(tokens.difference)
    if amount.mean() > ROUNDING:
        return None
    bias = float(tokens.difference.mean())
    return _NOT_ELSEWHERE, (
        f"log-probs differ a little everywhere: {amount.mean():.3f} on average, {np.quantile(amount, 0.99):.3f} at the "
        f"99th percentile, {bias:+.3f} with the sign; {types}"
    )


def _part(tokens: ComparedTokens, chosen: np.ndarray) -> str:
    amount = np.abs(tokens.difference)
    return f"{amount[chosen].sum() / max(amount.sum(), 1e-30):.0%}"


def _log_odds(logprobs: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """log(p / (1 - p)); NaN where p is so near to 1 or 0 that float32 has lost it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = logprobs - np.log(-np.expm1(logprobs))
    return np.where(np.abs(odds) < 12, odds, np.nan)


def _symmetric_slope(x: Float[np.ndarray, " N"], y: Float[np.ndarray, " N"]) -> float:
    """Slope of the line through a cloud whose noise is on both axes alike (total least squares)."""
    (xx, xy), (_, yy) = np.cov(x, y)
    return float((yy - xx + np.sqrt((yy - xx) ** 2 + 4 * xy**2)) / (2 * xy)) if xy else float("nan")


def _split_between_trials(tokens: ComparedTokens) -> tuple[float, str] | None:
    """Trials of two kinds, as when one of several replicas serves other weights."""
    rows, count = np.unique(tokens.rollout, return_counts=True)
    if len(rows) < 4:
        return None
    means = np.bincount(tokens.rollout, np.abs(tokens.difference))[rows] / count
    ordered = np.sort(np.maximum(means, 1e-6))
    gaps = ordered[1:] / ordered[:-1]
    at = int(gaps.argmax())
    worse = len(ordered) - 1 - at
    if gaps[at] < _SPLIT or not 0.1 <= worse / len(ordered) <= 0.9:
        return None
    chosen = (means > ordered[at])[np.searchsorted(rows, tokens.rollout)]
    return tokens.carried(chosen), (
        f"{worse} of {len(rows)} rollouts carry {_part(tokens, chosen)} of the mismatch, "
        f"at least {gaps[at]:.0f} times as much a token as any other: "
        "one of the replicas serves other weights than the rest"
    )
