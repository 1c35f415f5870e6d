"""What a person reads at the end of a run."""

from pathlib import Path
from typing import Any

from rich.console import Console

from flows.config import RunConfig
from flows.evaluation_view import print_outcomes, print_parts, print_scores
from flows.plot import plot_run
from flows.view import steps_table
from tasks.evaluation import difference_interval, mean_interval
from tasks.journal import Journal, read_json, step_label


def report_training(console: Console, config: RunConfig, root: Path, summary: dict[str, Any]) -> None:
    """Table of steps, before and after, plot."""
    journal = Journal(root / config.project / config.experiment)
    steps = [
        (s, (read_json(journal.stage_dir(step_label(s)) / "record.json") or {})["metrics"])
        for s in journal.finished_steps()
    ]
    evaluations = {int(step): record for step, record in summary["evaluations"].items()}
    if not console.is_terminal:
        console.print(steps_table(steps))
    picture = plot_run(steps, {s: e["mean_reward"] for s, e in evaluations.items()}, journal.root / "score.png")
    if len(evaluations) > 1 and all(record["clusters"] for record in evaluations.values()):
        _before_after(console, evaluations[min(evaluations)], evaluations[max(evaluations)])
    console.print(f"plot       {picture}", highlight=False, soft_wrap=True)


def report_quickstart(console: Console, config: RunConfig, root: Path, summary: dict[str, Any]) -> None:
    """`report_training`, and where to go from here."""
    report_training(console, config, root, summary)
    run = f"{config.project}/{config.experiment}"
    console.print("\n[bold]next[/bold]", highlight=False)
    for command, meaning in (
        (f"testgrad trials {run}", "read what the model answered, and what the tests said"),
        (f"testgrad export {run} -o my-model", "a Hugging Face folder that any server loads"),
        ("testgrad up", "Prefect and MLflow in the browser; runs to come appear there"),
    ):
        console.print(f"  .venv/bin/{command}\n      [dim]{meaning}[/dim]", highlight=False, soft_wrap=True)


def report_evaluation(console: Console, summary: dict[str, Any]) -> None:
    """Scores with their interval and coverage, parts of the pool, and how the trials ended."""
    print_scores(console, summary)
    if summary["scored"]:
        console.print(
            f"mean reward {summary['mean_reward']:.3f} of {summary['scored']} of {summary['launched']} trials scored",
            highlight=False,
        )
    else:
        console.print(f"nothing was scored, of {summary['launched']} trials", highlight=False)
    print_parts(console, summary)
    print_outcomes(console, summary)


def _before_after(console: Console, before: dict[str, Any], after: dict[str, Any]) -> None:
    first, last = mean_interval(before["clusters"]), mean_interval(after["clusters"])
    gain = difference_interval(before["clusters"], after["clusters"])
    console.print(
        f"\n[bold]held-out functions[/bold] ({len(after['clusters'])}, none seen in training), share of trials solved",
        highlight=False,
    )
    console.print(f"before     {first.mean:.2f}   (95 % {first.low:.2f} to {first.high:.2f})", highlight=False)
    console.print(f"after      {last.mean:.2f}   (95 % {last.low:.2f} to {last.high:.2f})", highlight=False)
    console.print(
        f"gain      [bold]{gain.mean:+.2f}[/bold]   (95 % {gain.low:+.2f} to {gain.high:+.2f}, paired by function)",
        highlight=False,
    )
