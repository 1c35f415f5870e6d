"""`testgrad eval-compare` and `testgrad regrade`: what finished evaluations say, without a model."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.commands.errors import clear_errors
from flows.environment import default_root, prepare

console = Console()

Root = Annotated[
    Path, typer.Option("--root", help="Where runs, models and pools are kept", default_factory=default_root)
]
_EVALUATION = "An evaluation: project/experiment@STEP, or project/experiment for its newest"


def eval_compare(
    first: Annotated[str, typer.Argument(help=_EVALUATION)],
    second: Annotated[str, typer.Argument(help="The other; two checkpoints of one run are RUN@0 and RUN@100")],
    root: Root,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Compare two finished evaluations, paired by task. What the trials do not support is not claimed."""
    prepare(root)
    from flows.evaluations import find_evaluation, side_by_side

    with clear_errors():
        pair = find_evaluation(root, first), find_evaluation(root, second)
        with _own_errors():
            both = side_by_side(*pair)
    if as_json:
        typer.echo(json.dumps({"first": pair[0].name, "second": pair[1].name} | asdict(both), indent=2))
        return
    _print_pair(*pair)
    _print_comparison(both.comparison, pair[0].name, pair[1].name)
    for name, before, after in both.differences:
        _say(f"not the weights alone: {name} {before} -> {after}", "yellow")


def regrade(
    run: Annotated[str, typer.Argument(help="project/experiment")],
    root: Root,
    step: Annotated[
        list[int] | None, typer.Option(help="The evaluation after this step; may be repeated. All if not given")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Patches graded at once; one a core if not given")
    ] = None,
) -> None:
    """Grade the patches of finished evaluations again, without a model: the tests and the sandbox as they are now.

    Verdicts are swapped when all patches have a new one. Exit status 1 if some could not be graded.
    """
    prepare(root)
    from flows.evaluations import EvaluationError, finished_steps
    from flows.open_run import read_run_config
    from flows.regrade import open_finished, regrade_evaluation
    from flows.reports import report_evaluation

    complete = True
    with clear_errors("stopped; the same command goes on where this one stopped"):
        reference = open_finished(root, run)
        config = read_run_config(reference)
        steps = step or finished_steps(reference.journal)
        if not steps:
            raise EvaluationError(f"{run} has no finished evaluation in {reference.journal.root}")
        for number in steps:
            with console.status("") as status:

                def tell(done: int, total: int, number: int = number, status: Any = status) -> None:
                    status.update(f"evaluation after step {number}: {done} of {total} patches graded")

                at_once = concurrency or os.cpu_count() or 1
                result = asyncio.run(regrade_evaluation(reference, number, config, at_once, tell))
            _say(f"evaluation after step {number}", "bold")
            complete &= result.swapped
            if not result.swapped:
                _say(
                    f"{result.failed} of {result.graded + result.failed} patches could not be graded, for reasons that "
                    "are not theirs: the old verdicts still count. The same command tries those again",
                    "yellow",
                )
                continue
            for change, count in result.changes.items():
                before, _, after = change.partition(" -> ")
                _say(f"{count:6d}  {change}", "" if before == after else "bold")
            report_evaluation(console, dict(result.after))
    if not complete:
        raise typer.Exit(1)


@contextmanager
def _own_errors() -> Iterator[None]:
    """Statistics refuse with a plain ValueError, which would else count as a fault of the code."""
    from flows.evaluations import EvaluationError

    try:
        yield
    except EvaluationError:
        raise
    except ValueError as error:
        raise EvaluationError(str(error)) from error


def _print_pair(*pair: Any) -> None:
    table = Table("", "pass@1", "95 %", "scored of tasks", "trials scored", box=None, header_style="bold")
    for evaluation in pair:
        record, rate = evaluation.record, evaluation.record["pass_at"].get("1")
        cells = (
            ("–", "", f"0 of {record['tasks']}")
            if rate is None
            else (
                f"{rate['value']:.3f}",
                f"{rate['low']:.3f} to {rate['high']:.3f}",
                f"{rate['scored']} of {rate['tasks']}",
            )
        )
        table.add_row(Text(evaluation.name), *cells, f"{record['scored']} of {record['launched']}")
    console.print(table)


def _print_comparison(found: Any, first: str, second: str) -> None:
    gain = found.gain
    _say(
        f"{second} less {first}: {gain.mean:+.3f} (95 % {gain.low:+.3f} to {gain.high:+.3f}), share of attempts "
        f"solved; {found.paired} of {found.tasks} tasks scored in both, {found.clusters} independent groups: "
        f"better on {found.won}, worse on {found.lost}; {found.test}: p = {found.p_value:.2g}"
    )
    if found.better is None:
        _say(f"no difference is supported: {found.why}", "bold")
    else:
        _say(f"{second if found.better == 'second' else first} is better", "bold green")


def _say(text: str, style: str = "") -> None:
    console.print(Text(text, style), soft_wrap=True)
