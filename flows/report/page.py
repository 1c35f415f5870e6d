"""The HTML of a report: one file that loads nothing, and in which no text from a trial is anything but text."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from flows.report import figures
from flows.report.conversation import Conversation, read_conversation
from flows.report.figures import Figure
from flows.report.health import read_health
from flows.report.run_data import RunData, TrialRow

SHOWN_TAMPERED = 20
_SECRET = re.compile(r"(^|[._])(secret|password|passwd|token|api_key|credentials?)$", re.IGNORECASE)
_TEMPLATES = files("flows.report") / "templates"


def render_report(run: RunData) -> str:
    """The report on one run."""
    curves, empty = figures.curves([run])
    tampered, slowest = _conversations(run)
    return render(
        "report.html.j2",
        title=f"{run.name} · testgrad",
        run=run,
        cards=_cards(run),
        health=read_health(run),
        running=[stage for stage in run.trials if stage.planned is not None],
        curves=curves,
        empty=empty,
        steps=_present(figures.stage_times(run), figures.trial_times(run)),
        trials=_present(
            figures.outcomes(run), figures.verdicts(run), figures.signal(run), figures.correct_of_n(run)
        ),
        grid=_present(figures.task_grid(run)),
        validation=_present(figures.validation([run])),
        gain=_gain(run),
        tampered=tampered,
        slowest=slowest,
        config=settings(run.config),
    )  # fmt: skip


def render(template: str, title: str, **values: Any) -> str:
    """A page from a template of this package.

    The policy in its head lets the browser run the two scripts of this page, and load nothing from anywhere.
    """
    # ASCII with Unix line ends, as the hashes are over the exact text between the tags
    plotly, script = plotly_js(), (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    allowed = " ".join(f"'sha256-{_digest(text)}'" for text in (plotly, script))
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
    policy += "form-action 'none'; base-uri 'none'"
    return _environment().get_template(template).render(
        title=title,
        policy=policy,
        plotly=Markup(plotly),
        script=Markup(script),
        style=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
        written_at=datetime.now(UTC),
        **values,
    )  # fmt: skip


@cache
def plotly_js() -> str:
    """Plotly's JavaScript, from its Python package."""
    text = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    # must not end the element that it is in
    return re.sub(r"</(?=script)", r"<\\/", text, flags=re.IGNORECASE)


def settings(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Dotted names and values, what looks like a secret blacked out."""
    return [(name, "redacted" if _SECRET.search(name) and value else _shown(value)) for name, value in _flat(config)]


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    result: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            result += _flat(value, f"{prefix}{key}.")
        else:
            result.append((f"{prefix}{key}", value))
    return result


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 2000 else text[:1999] + "…"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("flows.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {"number": _number, "moment": _moment, "spec": _spec}
    environment.finalize = _utf8
    return environment


def _utf8(value: Any) -> Any:
    """Texts without the lone surrogates that no file can hold."""
    if type(value) is str and not value.isascii():
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


def _spec(figure: Figure) -> dict[str, Any]:
    return {name: value for name, value in asdict(figure).items() if name in ("data", "layout")}


def _number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}g}"


def _moment(seconds: float | datetime) -> str:
    moment = seconds if isinstance(seconds, datetime) else datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _present(*figures: Figure | None) -> list[Figure]:
    return [figure for figure in figures if figure is not None]


def _cards(run: RunData) -> list[tuple[str, str]]:
    """The few figures that are looked for first."""
    trials = sum(stage.ended for stage in run.training)
    lost = sum(stage.outcomes["infra_error"] for stage in run.training)
    cards = [("steps", f"{len(run.steps)}" + (f" of {run.total_steps}" if run.total_steps is not None else ""))]
    if (score := run.last("critic/score/mean")) is not None:
        cards.append(("score, last step", f"{score:.3f}"))
    scored = [e for e in run.evaluations if e.mean is not None]
    if scored:
        last = scored[-1]
        cards.append((f"validation after step {last.step}", f"{last.mean:.3f} ({last.low:.3f} to {last.high:.3f})"))
    cards.append(("training trials", f"{trials:,}"))
    if trials:
        cards.append(("lost to infrastructure", f"{lost / trials:.1%}"))
    cards.append(("tampered", f"{run.tampered_total:,}"))
    if (seconds := run.last("timing_s/step")) is not None:
        cards.append(("seconds, last step", f"{seconds:,.0f}"))
    return cards


def _gain(run: RunData) -> str:
    """Last validation against the first, as far as their trials carry."""
    from tasks.evaluation import difference_interval  # brings Prefect along

    scored = [evaluation for evaluation in run.evaluations if evaluation.clusters]
    if len(scored) < 2 or not scored[0].clusters.keys() & scored[-1].clusters.keys():
        return ""
    gain = difference_interval(scored[0].clusters, scored[-1].clusters)
    told = f"{gain.mean:+.3f} (95 % {gain.low:+.3f} to {gain.high:+.3f}, paired by cluster)"
    claim = "" if gain.low > 0 or gain.high < 0 else ": these trials support no difference"
    return f"from step {scored[0].step} to step {scored[-1].step}: {told}{claim}"


def _conversations(run: RunData) -> tuple[list[Conversation], list[Conversation]]:
    """The tampered and the slowest trials; one that is both is shown in full once."""
    anchors: dict[tuple[str, str], str] = {}

    def shown(trials: Sequence[TrialRow]) -> list[Conversation]:
        result = []
        for trial in trials:
            anchor = anchors.setdefault((trial.label, trial.session_id), f"trial-{len(anchors) + 1}")
            result.append(read_conversation(run.root, trial, anchor))
        return result

    return shown(run.tampered[:SHOWN_TAMPERED]), shown(run.slowest)
