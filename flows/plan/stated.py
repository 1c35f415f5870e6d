"""A profile of figures that somebody states: for a cluster that nobody has measured yet."""

import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flows.plan.profile import EngineSpeed, PlanError, Profile, TrialShape

TRIALS = 512
"""Trials that stand for the distribution, at equal distances in probability."""
_P99 = NormalDist().inv_cdf(0.99)


class Stated(BaseModel):
    """Figures of a workload. Trials are log-normal: half of them are shorter than the median that is stated here."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    turns: int = Field(20, ge=1, description="Turns of a trial, median")
    tokens: int = Field(ge=1, description="Tokens that a trial samples, median")
    tail: float = Field(
        4.0, ge=1, description="How many times the median the 99th percentile is; 1 for trials all alike"
    )
    tool_seconds: float = Field(0.0, ge=0, description="Seconds that a trial waits for what its agent runs, median")
    setup_seconds: float = Field(0.0, ge=0, description="Seconds until a sandbox is ready")
    grading_seconds: float = Field(0.0, ge=0, description="Seconds of the hidden tests")
    tokens_per_s: float = Field(gt=0, description="Tokens a second of a replica that decodes one sequence")
    most_tokens_per_s: float = Field(gt=0, description="Tokens a second that a replica comes to with very many")
    turn_seconds: float = Field(0.0, ge=0, description="Seconds before the first token of a turn")
    update_tokens_per_s: float = Field(gt=0, description="Tokens a second that the learner trains on train_nodes nodes")
    prompt_share: float = Field(
        0.0, ge=0, description="Tokens of a batch beside each that was sampled: prompts and what tools wrote"
    )
    sync_seconds: float = Field(0.0, ge=0, description="Seconds of a sync, in which replicas stand still")
    overhead_seconds: float = Field(0.0, ge=0, description="Seconds of a step in which nothing of this happens")
    infra_failures: float = Field(0.0, ge=0, lt=1, description="Share of attempts that infrastructure breaks")
    train_nodes: int = Field(1, ge=1, description="Nodes that update_tokens_per_s is stated for")


def read_stated(path: Path) -> Profile:
    """The profile of the figures in a YAML file.

    Raises:
        PlanError: it cannot be read, or states what cannot be; the message names figure, value and mend.
    """
    try:
        values: Any = yaml.safe_load(path.read_text())
    except OSError as error:
        raise PlanError(f"--figures {path}: {error.strerror}; name a YAML file") from error
    except yaml.YAMLError as error:
        raise PlanError(f"--figures {path}: not YAML ({' '.join(str(error).split())})") from error
    try:
        stated = Stated.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"])) or "the file"
        known = ", ".join(Stated.model_fields)
        raise PlanError(f"--figures {path}: {field}: {problem['msg']} (figures are {known})") from error
    return profile_of(stated, str(path))


def profile_of(stated: Stated, source: str) -> Profile:
    """The profile of stated figures."""
    most = 1 / stated.most_tokens_per_s
    token = 1 / stated.tokens_per_s - most
    if token < 0:
        raise PlanError(
            f"{source}: tokens_per_s is {stated.tokens_per_s:g}, more than most_tokens_per_s "
            f"({stated.most_tokens_per_s:g}), which is what many sequences come to together; raise that"
        )
    return Profile(
        source=source,
        groups=(tuple(_shape(stated, _length(stated.tail, i)) for i in range(TRIALS)),),
        engine=EngineSpeed(token=token, crowd=most, turn=stated.turn_seconds),
        update_token=1 / stated.update_tokens_per_s,
        batch_tokens=1 + stated.prompt_share,
        sync=(stated.sync_seconds,),
        overhead=(stated.overhead_seconds,),
        infra_failures=stated.infra_failures,
        train_nodes=stated.train_nodes,
    )


def _length(tail: float, place: int) -> float:
    """How many times the median trial one of them is."""
    return math.exp(math.log(tail) / _P99 * NormalDist().inv_cdf((place + 0.5) / TRIALS))


def _shape(stated: Stated, length: float) -> TrialShape:
    return TrialShape(
        turns=max(round(stated.turns * length), 1),
        tokens=max(round(stated.tokens * length), 1),
        setup=stated.setup_seconds,
        tools=stated.tool_seconds * length,
        grading=stated.grading_seconds,
    )
