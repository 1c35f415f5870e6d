"""How fast an engine decodes, alone and in a crowd, from how long it took for trials that overlapped."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

from flows.plan.profile import EngineSpeed, PlanError

_ROUNDS = 5
"""Tokens come faster in a smaller crowd, so the crowd of an average token depends on the speed that is looked for."""


def engine_speed(tables: Sequence[Sequence[Mapping[str, Any]]], replicas: int) -> EngineSpeed:
    """The speed that explains best how long the policy took for each trial, given how many others it served then.

    Args:
        tables: The trials of each step, as rows of its trial table.

    Raises:
        PlanError: no trial tells how long the policy took.
    """
    busy = [[row for row in rows if row["generate"] > 0] for rows in tables]
    steps = [_Overlaps(rows, replicas) for rows in busy if rows]
    if not steps:
        raise PlanError("no trial of the run tells how long the policy took; plan from another run, or state figures")
    rows = [row for rows in busy for row in rows]
    tokens, turns, seconds = (
        np.array([row[key] for row in rows], dtype=float) for key in ("response_length", "turns", "generate")
    )
    # a trial's error grows with its length
    weights = 1 / np.sqrt(seconds)
    speed = np.array([1.0, 0.0, 0.0])
    for _ in range(_ROUNDS):
        crowds = np.concatenate([step.crowds(speed[0], speed[1]) for step in steps])
        parts = np.stack([tokens, tokens * crowds, turns], axis=1)
        speed, _ = nnls(parts * weights[:, None], seconds * weights)
    return EngineSpeed(token=float(speed[0]), crowd=float(speed[1]), turn=float(speed[2]))


def busy_seconds(tables: Sequence[Sequence[Mapping[str, Any]]], replicas: int) -> float:
    """Seconds in which engines worked on at least one trial, those of all replicas together."""
    busy = [[row for row in rows if row["generate"] > 0] for rows in tables]
    return sum(_Overlaps(rows, replicas).busy_seconds() for rows in busy if rows)


class _Overlaps:
    """Who was served when, in one step: between two edges of time nobody begins or ends."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], replicas: int) -> None:
        starts = np.array([row["started_at"] + row["sandbox_start"] for row in rows])
        lengths = np.array([max(row["agent"], row["generate"]) for row in rows])
        edges = np.unique(np.concatenate([starts, starts + lengths]))
        present = (starts[:, None] <= edges[:-1]) & (starts[:, None] + lengths[:, None] >= edges[1:])
        # of its time with the agent, a trial asks the policy for a part; it shares an engine with others of its replica
        asking = np.array([row["generate"] for row in rows]) / lengths
        others = asking @ present - asking[:, None]
        self._seconds = present * np.diff(edges)
        self._crowd = 1 + np.clip(others, 0, None) / replicas
        # of each replica, with trials that ask at times of their own
        self._idle = np.prod(1 - present * (asking / replicas)[:, None], axis=0)
        self._elapsed, self._replicas = np.diff(edges), replicas

    def crowds(self, token: float, crowd: float) -> np.ndarray:
        """Sequences decoded at once, itself included, when an average token of each trial was sampled. [trials]"""
        tokens = self._seconds / np.maximum(token + crowd * self._crowd, 1e-12)
        return np.asarray((tokens * self._crowd).sum(axis=1) / tokens.sum(axis=1))

    def busy_seconds(self) -> float:
        """Seconds in which an engine worked on a trial, summed over replicas."""
        return float(self._replicas * (self._elapsed * (1 - self._idle)).sum())
