"""The record at the seam between acting and learning: what was sampled, by which weights, and what is trained.

The harness fills these records, the trainer consumes them. Everything that later becomes a gradient passes through
`Rollout`, so its invariants are asserted whenever one is made: a token with mask 1 was sampled by the policy and
carries the log-probability and the weight version it was sampled with; a token with mask 0 carries neither.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

NO_VERSION = -1
"""Weight version of a token that the policy did not sample."""


class RolloutError(ValueError):
    """A token record that breaks one of its invariants; training on it would be silently wrong."""


class Outcome(StrEnum):
    """How a trial ended. All but `infra_error` are the policy's doing and graded as they stand."""

    COMPLETED = "completed"
    MAX_TURNS = "max_turns"
    OVERLONG = "overlong"
    AGENT_TIMEOUT = "agent_timeout"
    INFRA_ERROR = "infra_error"


@dataclass(frozen=True)
class Sampling:
    """How the policy samples. The trainer divides its logits by the same `temperature`.

    `min_tokens` forbids an early end, which bends the distribution: for measurements, never for rollouts to train on.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 1024
    min_tokens: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Routing:
    """Which experts a mixture-of-experts policy used: `data` is an array of little-endian int16, in C order.

    `shape` is [positions, layers, experts chosen]. A position is one that the engine read, from the first token of the
    prompt on; the newest token of an answer was not read yet.
    """

    data: bytes
    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        expected = 2 * math.prod(self.shape)
        if len(self.shape) != 3 or min(self.shape) < 1 or len(self.data) != expected:
            raise RolloutError(
                f"routing of shape {self.shape} has {len(self.data)} bytes; it needs [positions, layers, experts] and "
                f"two bytes for each, {expected} in all"
            )


@dataclass(frozen=True)
class Generation:
    """One answer of the policy: sampled ids verbatim, with log-probability and weight version of each.

    `logprobs` are natural logarithms under the sampling distribution (after temperature; greedy answers have those of
    temperature 1). `token_ids` include the end-of-sequence token, or the tokens that completed a stop string, when one
    ended the answer. `routed_experts`, where the engine tells them, are those of the prompt and the answer.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    weight_versions: Sequence[int]
    finish_reason: Literal["stop", "length", "abort"]
    routed_experts: Routing | None = None

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        if len(self.logprobs) != n or len(self.weight_versions) != n:
            raise RolloutError(
                f"generation of {n} tokens has {len(self.logprobs)} log-probs and "
                f"{len(self.weight_versions)} weight versions; each token needs one of each"
            )
        _require_sampled(self.logprobs, self.weight_versions)


class Policy(Protocol):
    """What the proxy needs of the serving side; one object for all replicas."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
        """Sample an answer to `prompt_ids`. Calls of one session go to one replica, whose prefix cache then helps.

        `prompt_ids` may be any sequence of ints and is not to be changed. Cancelling the call stops the generation.
        Raises an exception only for infrastructure failures.
        """
        ...


@runtime_checkable
class ReleasingPolicy(Protocol):
    """A policy that remembers sessions, and can be told that one has ended."""

    def release(self, session_id: str) -> None:
        """Forget the session; one that is unknown is no error."""
        ...


@dataclass(frozen=True)
class Rollout:
    """The token record of one segment of a trial; a trial whose conversation was never rewritten has just one.

    `token_ids`, `loss_mask`, `logprobs` and `weight_versions` have one entry a token, [tokens]. `loss_mask` is 1 for
    exactly the sampled ids. Where it is 0, `logprobs` is NaN and `weight_versions` is `NO_VERSION`, so that a use of
    either cannot go unnoticed. The first `prompt_length` tokens are the prompt of the segment's first request; what an
    earlier segment sampled of it has mask 0 here and mask 1 there. `segment` counts from 0 among the `num_segments` of
    the trial.
    """

    session_id: str
    task_id: str
    group_id: str
    step: int
    outcome: Outcome
    token_ids: Sequence[int]
    loss_mask: Sequence[int]
    logprobs: Sequence[float]
    weight_versions: Sequence[int]
    prompt_length: int
    num_turns: int
    num_segments: int = 1
    segment: int = 0
    routed_experts: bytes | None = None
    routing_shape: Sequence[int] | None = None

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        for name in ("loss_mask", "logprobs", "weight_versions"):
            if len(getattr(self, name)) != n:
                raise RolloutError(f"{self.session_id}: {name} has {len(getattr(self, name))} entries for {n} tokens")
        if not 0 < self.prompt_length <= n:
            raise RolloutError(f"{self.session_id}: prompt_length {self.prompt_length} of {n} tokens")
        if any(self.loss_mask[: self.prompt_length]):
            raise RolloutError(f"{self.session_id}: a prompt token has loss_mask 1; prompts are never sampled")
        if any(m not in (0, 1) for m in self.loss_mask):
            raise RolloutError(f"{self.session_id}: loss_mask holds values other than 0 and 1")
        sampled = [i for i, m in enumerate(self.loss_mask) if m]
        _require_sampled([self.logprobs[i] for i in sampled], [self.weight_versions[i] for i in sampled])
        for i, m in enumerate(self.loss_mask):
            if not m and not (math.isnan(self.logprobs[i]) and self.weight_versions[i] == NO_VERSION):
                raise RolloutError(f"{self.session_id}: token {i} was not sampled but carries a log-prob or a version")
        if not 0 <= self.segment < self.num_segments:
            raise RolloutError(f"{self.session_id}: segment {self.segment} of {self.num_segments}")
        self._require_routing()

    @property
    def response_length(self) -> int:
        """Number of sampled tokens."""
        return sum(self.loss_mask)

    @property
    def routing(self) -> Routing | None:
        """Experts used at each token but perhaps the last; None where the engine did not tell."""
        if self.routed_experts is None or self.routing_shape is None:
            return None
        positions, layers, chosen = self.routing_shape
        return Routing(self.routed_experts, (positions, layers, chosen))

    def to_row(self) -> dict[str, Any]:
        """This rollout as a row of `ROLLOUT_SCHEMA`."""
        return {name: getattr(self, name) for name in ROLLOUT_SCHEMA.names} | {"outcome": str(self.outcome)}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Rollout":
        """The rollout in a row of `ROLLOUT_SCHEMA`; further columns are ignored.

        Raises:
            RolloutError: the row breaks an invariant.
        """
        fields = {name: row[name] for name in ROLLOUT_SCHEMA.names}
        return cls(**fields | {"outcome": Outcome(fields["outcome"])})

    def _require_routing(self) -> None:
        n = len(self.token_ids)
        if (self.routed_experts is None) != (self.routing_shape is None):
            raise RolloutError(f"{self.session_id}: routed_experts and routing_shape go together, one is missing")
        if self.routing_shape is not None and len(self.routing_shape) != 3:
            raise RolloutError(
                f"{self.session_id}: routing_shape {self.routing_shape} is not [positions, layers, experts]"
            )
        routing = self.routing
        if routing is not None and routing.shape[0] not in (n - 1, n):
            raise RolloutError(f"{self.session_id}: routing of {routing.shape[0]} positions for {n} tokens")


ROLLOUT_SCHEMA = pa.schema(
    [
        ("session_id", pa.string()),
        ("task_id", pa.string()),
        ("group_id", pa.string()),
        ("step", pa.int32()),
        ("outcome", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float32())),
        ("weight_versions", pa.list_(pa.int32())),
        ("prompt_length", pa.int32()),
        ("num_turns", pa.int32()),
        ("num_segments", pa.int32()),
        ("segment", pa.int32()),
        ("routed_experts", pa.binary()),
        ("routing_shape", pa.list_(pa.int32())),
    ]
)


def _require_sampled(logprobs: Sequence[float], versions: Sequence[int]) -> None:
    for i, (logprob, version) in enumerate(zip(logprobs, versions, strict=True)):
        if not (math.isfinite(logprob) and logprob <= 1e-4):
            raise RolloutError(
                f"sampled token {i} has log-prob {logprob}; the engine must return a finite one, never 0.0 for a gap"
            )
        if version < 0:
            raise RolloutError(f"sampled token {i} has weight version {version}; the engine must tag each token")
