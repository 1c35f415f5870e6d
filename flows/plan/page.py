"""A plan as rows for a table, as JSON, and as one HTML file."""

import math
from dataclasses import asdict
from typing import Any

from flows.plan.figures import draw
from flows.plan.forecast import Forecast
from flows.plan.sweep import Plan
from flows.report.page import render

COLUMNS = (
    "mode", "nodes", "step s", "± s", "trials/s", "tokens/s", "idle replicas", "idle learner", "mean age", "max age",
    "dropped", "cost of 1,000",
)  # fmt: skip
SHOWN = ("mode", "nodes", "step s", "tokens/s", "idle replicas", "idle learner", "mean age", "cost of 1,000")
"""What a terminal has room for."""


def row(found: Forecast) -> list[str]:
    """A forecast's cells, one for each of COLUMNS."""
    return [
        found.layout.mode,
        found.layout.split,
        f"{found.step_seconds:.4g}",
        "" if math.isnan(found.step_error) else f"{2 * found.step_error:.2g}",
        f"{found.trials_per_s:.3g}",
        f"{found.tokens_per_s:.4g}",
        f"{found.idle_rollout:.0%}",
        f"{found.idle_learner:.0%}",
        f"{found.mean_age:.2f}",
        str(found.max_age),
        f"{found.dropped:.1%}",
        "" if found.cost is None else f"{found.cost:.2f}",
    ]


def to_json(plan: Plan) -> dict[str, Any]:
    """What `testgrad plan --json` prints."""
    return {
        "source": plan.source,
        "workload": asdict(plan.workload),
        "fastest": _figures(plan.fastest),
        "cheapest": _figures(plan.cheapest),
        "layouts": [_figures(found) for found in plan.forecasts],
    }


def _figures(found: Forecast) -> dict[str, Any]:
    values = {**asdict(found.layout), **asdict(found), "nodes": found.layout.nodes, "cost": found.cost}
    del values["layout"]
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}


def render_plan(plan: Plan, title: str) -> str:
    """The HTML of a plan: a file that loads nothing."""
    return render(
        "plan.html.j2",
        title=title,
        plan=plan,
        figures=draw(plan.forecasts),
        columns=COLUMNS,
        rows=[row(found) for found in plan.forecasts],
    )
