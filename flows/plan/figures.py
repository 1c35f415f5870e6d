"""A plan's figures: one value of all layouts each, by split and mode."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flows.plan.forecast import Forecast
from flows.plan.layout import MODES
from flows.report.figures import PALETTE, Figure, plot_layout


@dataclass(frozen=True)
class Chart:
    """A value of a forecast, None where there is none."""

    key: str
    title: str
    unit: str
    value: Callable[[Forecast], float | None]


CHARTS = (
    Chart("step", "Step time", "seconds", lambda found: found.step_seconds),
    Chart("tokens", "Sampled tokens that are trained on", "tokens a second", lambda found: found.tokens_per_s),
    Chart("cost", "Cost of 1,000 trials", "in the currency of the price", lambda found: found.cost),
    Chart("idle-rollout", "Replicas without work", "share of time", lambda found: found.idle_rollout),
    Chart("idle-learner", "Learner without work", "share of time", lambda found: found.idle_learner),
    Chart("age", "Age of trained tokens", "weight versions, mean", lambda found: found.mean_age),
    Chart("dropped", "Groups dropped for their age", "share", lambda found: found.dropped),
)


def draw(forecasts: Sequence[Forecast]) -> list[Figure]:
    """The figures; those that would be empty or 0 throughout are left out."""
    return [_figure(chart, forecasts) for chart in CHARTS if any(chart.value(found) for found in forecasts)]


def _figure(chart: Chart, forecasts: Sequence[Forecast]) -> Figure:
    splits = list(dict.fromkeys(found.layout.split for found in sorted(forecasts, key=_place)))
    bars: list[dict[str, Any]] = []
    for mode, color in zip(MODES, PALETTE, strict=False):
        values = {found.layout.split: chart.value(found) for found in forecasts if found.layout.mode == mode}
        if values:
            bars.append(
                {
                    "type": "bar",
                    "x": [split for split in splits if split in values],
                    "y": [values[split] for split in splits if split in values],
                    "name": mode,
                    "marker": {"color": color},
                    "hovertemplate": f"{mode}, %{{x}}: %{{y:.4g}}<extra></extra>",
                }
            )
    layout = plot_layout("nodes: train + rollout", chart.unit)
    layout["xaxis"] |= {"type": "category", "categoryorder": "array", "categoryarray": splits}
    return Figure(chart.key, chart.title, bars, layout)


def _place(found: Forecast) -> tuple[int, bool, int]:
    layout = found.layout
    return layout.nodes, not layout.shared, layout.train_nodes
