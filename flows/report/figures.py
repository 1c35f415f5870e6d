"""A run's figures, as Plotly takes them: plain dicts of data and layout.

Plotly reads a little HTML in every text, links included. What a trial or a pool wrote goes through `label` first.
"""

import base64
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flows.report.run_data import RunData, StageTrials

BLUE, ORANGE, GREEN, RED, PURPLE, BROWN, PINK, GREY = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#7b5ea7", "#8c564b", "#cc79a7", "#999999",
)  # fmt: skip
PALETTE = (BLUE, ORANGE, GREEN, RED, PURPLE, BROWN, PINK, GREY)

OUTCOMES = {
    "completed": GREEN, "max_turns": BLUE, "overlong": ORANGE, "agent_timeout": PURPLE, "infra_error": RED,
}  # fmt: skip
STATUSES = {
    "passed": GREEN, "failed": BLUE, "broken": ORANGE, "tampered": "#000000", "infra_error": RED, "not graded": GREY,
}  # fmt: skip
TRIAL_STAGES = {
    "queue": "waiting for a turn", "retries": "attempts that the machine broke",
    "sandbox_start": "sandbox and snapshot", "agent": "the agent without the model",
    "generate": "the model's answers", "patch": "reading the changes", "sandbox_stop": "removing the sandbox",
    "grading": "the hidden tests",
}  # fmt: skip

MAX_GRID_TASKS = 400
_MAX_LABEL = 80
_SMOOTH = 10


@dataclass(frozen=True)
class Curve:
    """Metrics that share an axis: name and what it is called here. `note` tells what healthy looks like.

    Of an `optional` one nobody is told that it is not there.
    """

    key: str
    title: str
    metrics: Sequence[tuple[str, str]]
    note: str = ""
    optional: bool = False


CURVES = (
    Curve("score", "Score", [("critic/score/mean", "score"), ("critic/rewards/mean", "reward")]),
    Curve(
        "kl", "KL",
        [("rollout_corr/kl", "engine and trainer"), ("actor/ppo_kl", "old and new policy"),
         ("actor/kl_loss", "loss against the reference")],
        "Engine and trainer about 3e-4. Old and new are exactly 0 with one mini-batch and one epoch.",
    ),
    Curve("entropy", "Entropy", [("actor/entropy", "nats a token")]),
    Curve(
        "lengths", "Lengths in tokens",
        [("response_length/mean", "sampled, mean"), ("response_length/max", "sampled, longest"),
         ("prompt_length/mean", "prompt, mean")],
    ),
    Curve("turns", "Turns", [("num_turns/mean", "mean"), ("num_turns/max", "most")], "At 1 no tool is used any more."),
    Curve(
        "pearson", "Agreement of engine and trainer", [("training/rollout_actor_probs_pearson_corr", "Pearson")],
        "Below 0.99 the two do not compute the same policy.",
    ),
    Curve(
        "ess", "Effective sample size of the importance weights",
        [("rollout_corr/rollout_is_eff_sample_size", "share of tokens or rollouts")], "Near 0 nothing is learned.",
    ),
    Curve("grad", "Gradient norm", [("actor/grad_norm", "actor"), ("critic/grad_norm", "critic")]),
    Curve("lr", "Learning rate", [("actor/lr", "actor")], "0 trains nothing."),
    Curve("throughput", "Tokens a second and device", [("perf/throughput", "whole step")]),
    Curve("mfu", "Model FLOPs utilisation", [("perf/mfu/actor", "update")], optional=True),
    Curve(
        "clipped", "Shares",
        [("actor/pg_clipfrac", "clipped by the loss"), ("response_length/clip_ratio", "answers cut short"),
         ("trajectory_filter/invalid_ratio", "trials left out")],
    ),
)  # fmt: skip

_STEP_STAGES = (
    ("timing_s/gen", "trials", BLUE),
    ("timing_s/update_actor", "update", ORANGE),
    ("timing_s/update_weights", "sync", GREEN),
)


@dataclass(frozen=True)
class Figure:
    """What Plotly draws, under a title, above a note."""

    key: str
    title: str
    data: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    note: str = ""


def label(text: object, limit: int = _MAX_LABEL) -> str:
    """Text for a figure: one line, of bounded length, without anything that Plotly or a terminal would act on."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text)[: limit + 1])
    shown = shown if len(shown) <= limit else shown[: limit - 1] + "…"
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def curves(runs: Sequence[RunData]) -> tuple[list[Figure], list[str]]:
    """Curves by step; of several runs, the first metric of each, side by side. And titles of those without a value."""
    figures, empty = [], []
    for curve in CURVES:
        chosen = curve.metrics if len(runs) == 1 else curve.metrics[:1]
        lines = [
            _line(run, metric, name if len(runs) == 1 else label(run.name), PALETTE[i + k])
            for k, run in enumerate(runs)
            for i, (metric, name) in enumerate(chosen)
            if _has_values(run, metric)
        ]
        if not lines:
            empty += [] if curve.optional else [curve.title]
            continue
        title = curve.title if len(runs) == 1 else f"{curve.title} ({chosen[0][1]})"
        lines += [_smoothed(run, PALETTE[k]) for k, run in enumerate(runs) if curve.key == "score" and _is_long(run)]
        layout = plot_layout("step")
        if (constant := _constant(lines)) is not None:
            layout["yaxis"]["range"] = sorted((0.0, 2 * constant))
        figures.append(Figure(curve.key, title, lines, layout, curve.note))
    return figures, empty


def stage_times(run: RunData) -> Figure | None:
    """Stacked bars: seconds of a step by stage."""
    if not _has_values(run, "timing_s/step"):
        return None
    steps = list(run.steps)
    known = np.zeros(len(steps))
    bars = []
    for metric, name, color in _STEP_STAGES:
        seconds = np.nan_to_num(run.metrics.get(metric, np.zeros(len(steps))))
        known += seconds
        bars.append(_bar(steps, seconds, name, color))
    rest = np.clip(np.nan_to_num(run.metrics["timing_s/step"]) - known, 0, None)
    bars.append(_bar(steps, rest, "grading's rest, batch, records", GREY))
    return Figure("stages", "Where a step's time goes", bars, plot_layout("step", "seconds", stacked=True))


def trial_times(run: RunData) -> Figure | None:
    """Stacked bars: mean seconds of a trial by stage."""
    stages = [stage for stage in run.training if stage.seconds]
    if not stages:
        return None
    bars = []
    for (name, meaning), color in zip(TRIAL_STAGES.items(), PALETTE, strict=True):
        model = "generate" if name == "agent" else None
        seconds = [max(s.seconds.get(name, 0.0) - (s.seconds.get(model, 0.0) if model else 0.0), 0.0) for s in stages]
        if any(seconds):
            bars.append(_bar([s.step for s in stages], seconds, meaning, color))
    return Figure("trial-stages", "Where a trial's time goes", bars, plot_layout("step", "mean seconds", stacked=True))


def outcomes(run: RunData) -> Figure | None:
    """Stacked bars: how the trials of each step ended."""
    return _counts("outcomes", "How trials ended", run.training, [s.outcomes for s in run.training], OUTCOMES)


def verdicts(run: RunData) -> Figure | None:
    """Stacked bars: what the trials of each step were judged to be."""
    return _counts("verdicts", "Verdicts", run.training, [s.statuses for s in run.training], STATUSES)


def signal(run: RunData) -> Figure | None:
    """Stacked bars: groups without a signal, since none or all of their attempts solved the task."""
    stages = [stage for stage in run.training if any(group.scored for group in stage.groups)]
    if not stages:
        return None
    steps = [stage.step for stage in stages]
    shares = np.array([_signal_shares(stage) for stage in stages])
    parts = (("no attempt solved it", ORANGE), ("some did: a signal", GREEN), ("all did", BLUE))
    bars = [_bar(steps, shares[:, i], name, color) for i, (name, color) in enumerate(parts)]
    without = 1 - float(shares[:, 1].mean())
    note = f"Without a signal: {without:.0%} of the groups on average, {1 - shares[-1, 1]:.0%} in step {steps[-1]}."
    return Figure("signal", "Groups that can teach something", bars, plot_layout("step", "share", stacked=True), note)


def correct_of_n(run: RunData) -> Figure | None:
    """Histogram: how many attempts of a group solved its task, in the first and the second half of the run."""
    stages = run.training
    sizes = Counter(group.scored for stage in stages for group in stage.groups if group.scored)
    if not sizes:
        return None
    n = max(sizes, key=lambda size: (sizes[size], size))
    middle = math.ceil(len(stages) / 2)
    halves = [stages[:middle], stages[middle:]] if len(stages) > 1 else [stages]
    bars = []
    for half, color in zip(halves, (GREY, BLUE), strict=False):
        solved = Counter(group.solved for stage in half for group in stage.groups if group.scored == n)
        total = solved.total() or 1
        name = f"steps {half[0].step} to {half[-1].step}"
        bars.append(_bar(list(range(n + 1)), [solved[k] / total for k in range(n + 1)], name, color))
    left_out = sizes.total() - sizes[n]
    note = f"{left_out} groups with another number of scored attempts are not in it." if left_out else ""
    layout = plot_layout(f"attempts of {n} that solved the task", "share of groups")
    layout["xaxis"]["dtick"] = 1 if n <= 32 else None
    return Figure("correct", f"Correct of {n}", bars, layout, note)


def task_grid(run: RunData) -> Figure | None:
    """Heat map: share of attempts that solved a task, by task and step; the tasks tried most often if there are many.

    Tasks are sorted by their share over the whole run.
    """
    stages = run.training
    solved: Counter[str] = Counter()
    scored: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for group in (group for stage in stages for group in stage.groups if group.scored):
        solved[group.task_id] += group.solved
        scored[group.task_id] += group.scored
        tried[group.task_id] += 1
    if not tried:
        return None
    chosen = sorted(tried, key=lambda task: (-tried[task], task))[:MAX_GRID_TASKS]
    chosen.sort(key=lambda task: (solved[task] / scored[task], task))
    rows = {task: i for i, task in enumerate(chosen)}
    grid = np.full((len(rows), len(stages)), np.nan, dtype="<f4")
    for column, stage in enumerate(stages):
        for group in stage.groups:
            if group.scored and group.task_id in rows:
                grid[rows[group.task_id], column] = group.solved / group.scored
    heat = {
        "type": "heatmap",
        "x": [stage.step for stage in stages],
        "y": _distinct(label(task) for task in chosen),
        "z": _packed(grid),
        "zmin": 0,
        "zmax": 1,
        "colorscale": [[0, RED], [0.5, "#f0e442"], [1, GREEN]],
        "colorbar": {"title": {"text": "solved"}, "len": 0.5},
        "hovertemplate": "%{y}<br>step %{x}: %{z:.0%}<extra></extra>",
    }
    few = len(rows) <= 60
    layout = plot_layout("step")
    layout["yaxis"] = {"type": "category", "showticklabels": few, "automargin": True, "ticks": ""}
    layout["height"] = 140 + len(rows) * (16 if few else 4)
    note = f"{len(rows)} of {len(tried)} tasks, those tried most often." if len(tried) > len(rows) else ""
    names = "" if few else " Names are shown under the pointer."
    return Figure("grid", "Tasks by step", [heat], layout, f"Easiest on top; white is not tried. {note}{names}")


def validation(runs: Sequence[RunData]) -> Figure | None:
    """Held-out score by step, with 95 % intervals."""
    lines = []
    for run, color in zip(runs, PALETTE, strict=False):
        points = [e for e in run.evaluations if e.mean is not None or e.mean_reward is not None]
        if not points:
            continue
        means = [e.mean if e.mean is not None else e.mean_reward for e in points]
        lines.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": [e.step for e in points],
                "y": _clean(means),
                "name": label(run.name) if len(runs) > 1 else "mean by cluster",
                "line": {"color": color},
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": _clean((e.high or 0.0) - (e.mean or 0.0) for e in points),
                    "arrayminus": _clean((e.mean or 0.0) - (e.low or 0.0) for e in points),
                },
            }
        )
    if not lines:
        return None
    layout = plot_layout("step", "share solved")
    layout["yaxis"]["range"] = [-0.02, 1.02]
    note = "Bars: 95 % intervals, by a bootstrap over clusters of related tasks."
    return Figure("validation", "Validation on held-out tasks", lines, layout, note)


def _counts(
    key: str, title: str, stages: Sequence[StageTrials], counts: Sequence[Counter[str]], colors: dict[str, str]
) -> Figure | None:
    """Stacked bars of counts by step; names that the project does not know are one part."""
    if not stages:
        return None
    steps = [stage.step for stage in stages]
    bars = [_bar(steps, [c[name] for c in counts], name.replace("_", " "), color) for name, color in colors.items()]
    unknown = [sum(n for name, n in c.items() if name not in colors) for c in counts]
    bars.append(_bar(steps, unknown, "unknown", PINK))
    shown = [bar for bar in bars if any(bar["y"])]
    return Figure(key, title, shown, plot_layout("step", "trials", stacked=True)) if shown else None


def _signal_shares(stage: StageTrials) -> tuple[float, float, float]:
    groups = [group for group in stage.groups if group.scored]
    none = sum(group.solved == 0 for group in groups)
    every = sum(group.solved == group.scored for group in groups)
    return none / len(groups), (len(groups) - none - every) / len(groups), every / len(groups)


def _has_values(run: RunData, metric: str) -> bool:
    return metric in run.metrics and bool(np.isfinite(run.metrics[metric]).any())


def _is_long(run: RunData) -> bool:
    return len(run.steps) >= 3 * _SMOOTH and _has_values(run, "critic/score/mean")


def _line(run: RunData, metric: str, name: str, color: str) -> dict[str, Any]:
    few = len(run.steps) <= 60
    return {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "x": list(run.steps),
        "y": _clean(run.metrics[metric]),
        "name": name,
        "line": {"color": color, "width": 1.5},
        "marker": {"size": 5},
        "hovertemplate": "step %{x}: %{y:.4g}<extra></extra>",
    }


def _constant(lines: Sequence[dict[str, Any]]) -> float | None:
    """The one value of all lines, if that is not 0: Plotly would show a learning rate of 1e-6 between -1 and 1."""
    values = {value for line in lines for value in line["y"] if value is not None}
    return values.pop() if len(values) == 1 and 0.0 not in values else None


def _smoothed(run: RunData, color: str) -> dict[str, Any]:
    """The score's mean over the steps up to each."""
    values = run.metrics["critic/score/mean"]
    means = []
    for end in range(1, len(values) + 1):
        window = values[max(end - _SMOOTH, 0) : end]
        known = window[np.isfinite(window)]
        means.append(float(known.mean()) if len(known) else math.nan)
    line = {"color": color, "width": 3}
    name = f"score, mean of {_SMOOTH} steps"
    return {"type": "scatter", "mode": "lines", "x": list(run.steps), "y": _clean(means), "name": name, "line": line}


def _bar(x: Sequence[int], y: Iterable[float], name: str, color: str) -> dict[str, Any]:
    hover = f"{name}<br>%{{x}}: %{{y:.3g}}<extra></extra>"
    marker = {"color": color, "line": {"width": 0}}
    return {"type": "bar", "x": list(x), "y": _clean(y), "name": name, "marker": marker, "hovertemplate": hover}


def _clean(values: Iterable[Any]) -> list[float | None]:
    """JSON numbers of six digits: what is not finite is null, a gap."""
    return [float(f"{v:.6g}") if v is not None and math.isfinite(v) else None for v in values]


def _distinct(names: Iterable[str]) -> list[str]:
    """The names with a number behind those that come again: one label is one row."""
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result


def _packed(grid: np.ndarray) -> dict[str, str]:
    """Plotly's typed array."""
    shape = ", ".join(map(str, grid.shape))
    return {"dtype": "f4", "bdata": base64.b64encode(grid.tobytes()).decode(), "shape": shape}


def plot_layout(x: str, y: str = "", stacked: bool = False) -> dict[str, Any]:
    """Plotly's layout with these titles of the axes."""
    layout: dict[str, Any] = {
        "height": 300,
        "margin": {"l": 56, "r": 16, "t": 12, "b": 44},
        "xaxis": {"title": {"text": x}, "gridcolor": "#eee", "zeroline": False},
        "yaxis": {"title": {"text": y}, "gridcolor": "#eee", "zeroline": False, "automargin": True},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "modebar": {"orientation": "v", "bgcolor": "rgba(255,255,255,0)"},
        "showlegend": True,
        "plot_bgcolor": "#fff",
        "paper_bgcolor": "#fff",
        "font": {"family": "system-ui, sans-serif", "size": 12},
    }
    if stacked:
        layout |= {"barmode": "stack", "bargap": 0.1}
    return layout
