"""The reward of a trial: the verdict's, or what the run's own function makes of it, less a penalty for length."""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.journal import write_json
from tasks.run import RunRef
from tasks.trial_files import StoredTrial
from trainer.rollout import Outcome

OVERLONG = "overlong"
"""Name of the penalty for length among named rewards."""

GO_ON = "mend it and start the same run again: no trial is repeated, only rewards not yet given are asked for"


class RewardError(ValueError):
    """A reward that cannot be trained on; the message names the trial, the function, what it gave and how to go on."""


@dataclass(frozen=True)
class RewardInput:
    """What a reward function is told of a trial.

    `reward` is the verdict's: 1.0 if the hidden tests passed, else 0.0. `tests` maps the hidden tests' ids to
    `passed`, `failed` and so on; it is empty where they could not run. `patch` is the accepted change as a unified diff
    for people, cut short if it is very long. `num_turns` counts the policy's answers, `response_length` the tokens that
    it sampled: what tools wrote is in neither.
    """

    task_id: str
    session_id: str
    outcome: Outcome
    reward: float
    tests: Mapping[str, str]
    patch: str
    num_turns: int
    response_length: int


@dataclass(frozen=True)
class Reward:
    """`reward` is what is trained on. `named` are its parts, for estimators that weigh them; empty if it has none."""

    reward: float
    named: Mapping[str, float] = field(default_factory=dict)


class RewardConfig(BaseModel):
    """How a verdict becomes a reward."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    function: str | None = Field(
        None,
        description="`module:function` of your own: takes a `tasks.reward.RewardInput`, returns a number, or numbers "
        "by name, whose sum is the reward unless one is named `score`. The verdict's reward if unset",
    )
    overlong_buffer: int = Field(
        0, ge=0, description="Sampled tokens before overlong_length over which a penalty for length grows; 0 for none"
    )
    overlong_penalty: float = Field(1.0, gt=0, description="Penalty at overlong_length and beyond (DAPO)")
    overlong_length: int | None = Field(
        None,
        ge=1,
        description="Sampled tokens at which the penalty for length is full; tools' tokens do not count",
    )

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.function is not None:
            load_function(self.function)
        if not self.overlong_buffer:
            return self
        if self.overlong_length is None:
            raise ValueError(
                f"overlong_buffer is {self.overlong_buffer}, but overlong_length is unset; "
                "set it to the longest answer in tokens, or overlong_buffer: 0"
            )
        if self.overlong_buffer > self.overlong_length:
            raise ValueError(
                f"overlong_buffer is {self.overlong_buffer}, more than overlong_length of {self.overlong_length}: "
                "an answer of no tokens would be punished; lower it"
            )
        return self


def load_function(path: str) -> Callable[[RewardInput], Any]:
    """The function at `module:function`.

    Raises:
        ValueError: there is none.
    """
    module_name, separator, name = path.partition(":")
    if not (module_name and separator and name):
        raise ValueError(f"function is {path!r}; write it as my_module:my_function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the module is a user's: importing it may raise anything
        raise ValueError(
            f"function is {path!r}, but {module_name!r} cannot be imported ({type(error).__name__}: {error}); "
            "mend the module, install it, or put its folder on PYTHONPATH"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        known = sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))
        raise ValueError(
            f"function is {path!r}, but {module_name!r} has no function {name!r}; it has {', '.join(known) or 'none'}"
        )
    return function


def overlong_penalty(response_length: int, config: RewardConfig) -> float:
    """DAPO's soft punishment of length, at most 0: linear in the last `overlong_buffer` tokens, then constant.

    Yu et al., 2025 (arXiv:2503.14476), equation 13.
    """
    if not config.overlong_buffer or config.overlong_length is None:
        return 0.0
    excess = response_length - (config.overlong_length - config.overlong_buffer)
    return -config.overlong_penalty * min(max(excess, 0) / config.overlong_buffer, 1.0)


def shape(trial: RewardInput, config: RewardConfig) -> Reward:
    """The reward of a trial.

    Raises:
        RewardError: the function raised, or returned what is no reward.
    """
    reward = trial.reward
    named: dict[str, float] = {}
    if config.function is not None:
        reward, named = _ask(trial, config.function)
    penalty = overlong_penalty(trial.response_length, config)
    if config.overlong_buffer and named:
        if OVERLONG in named:
            raise RewardError(
                f"session {trial.session_id}: {config.function} returned a reward named {OVERLONG!r}, the name of the "
                f"penalty that reward.overlong_buffer turns on; {GO_ON}"
            )
        named[OVERLONG] = penalty
    return Reward(reward + penalty, named)


def reward_trials(run: RunRef, label: str, trials: Sequence[StoredTrial], config: RewardConfig) -> dict[str, Reward]:
    """Rewards of graded trials by session id.

    A function need not give the same answer twice (it may ask a model), so an answer is journaled before anything
    depends on it, and kept as long as the verdict is the one that it was given for.

    Raises:
        RewardError: see `shape`, or rewards of one trial have other names than those of the others.
    """
    path = run.journal.stage_dir(label) / "rewards.json"
    journaled = run.journal.stage(label, path.name) or {}
    inputs = {trial.session_id: reward_input(trial) for trial in trials}
    given = {
        session: Reward(journaled[session]["reward"], journaled[session]["named"])
        if session in journaled and journaled[session]["verdict"] == trial.reward
        else shape(trial, config)
        for session, trial in inputs.items()
    }
    _require_same_names(given, config, path)
    lines = {session: asdict(reward) | {"verdict": inputs[session].reward} for session, reward in given.items()}
    if lines != journaled:
        write_json(path, journaled | lines)
    return given


def reward_input(trial: StoredTrial) -> RewardInput:
    """What a reward function is told of a graded trial."""
    assert trial.verdict is not None, f"{trial.folder} is not graded"
    diff = trial.folder / "patch.diff"
    return RewardInput(
        task_id=str(trial.record["task_id"]),
        session_id=trial.session_id,
        outcome=trial.outcome,
        reward=trial.verdict.reward,
        tests=dict(trial.verdict.tests),
        patch=diff.read_text(encoding="utf-8") if diff.is_file() else "",
        num_turns=int(trial.record["turns"]),
        response_length=int(trial.record["response_length"]),
    )


def _ask(trial: RewardInput, path: str) -> tuple[float, dict[str, float]]:
    """The function's reward, and its parts if it names any."""
    try:
        answer = load_function(path)(trial)
    except Exception as error:  # a user's function may raise anything
        raise RewardError(
            f"session {trial.session_id}: {path} raised {type(error).__name__}: {error}; {GO_ON}"
        ) from error
    if not isinstance(answer, Mapping):
        return _number(answer, trial, path), {}
    if not answer or not all(isinstance(name, str) for name in answer):
        raise RewardError(f"session {trial.session_id}: {path} returned {answer!r}; name at least one reward; {GO_ON}")
    named = {name: _number(value, trial, f"{path}, {name!r}") for name, value in answer.items()}
    total = named.pop("score", None)
    return sum(named.values()) if total is None else total, named


def _number(value: Any, trial: RewardInput, source: str) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise RewardError(
            f"session {trial.session_id}: {source} returned {value!r}; a reward is a finite number; {GO_ON}"
        )
    return float(value)


def _require_same_names(given: Mapping[str, Reward], config: RewardConfig, path: Path) -> None:
    first: tuple[str, Reward] | None = None
    for session, reward in given.items():
        first = first or (session, reward)
        if reward.named.keys() != first[1].named.keys():
            raise RewardError(
                f"session {session}: {config.function} named its rewards {sorted(reward.named)}, but "
                f"{sorted(first[1].named)} for session {first[0]}; each trial of a step needs the same names. Mend it, "
                f"remove {path} to have all rewards of the step asked for anew, and start the same run again"
            )
