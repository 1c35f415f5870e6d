"""`testgrad eval`: score a model, a checkpoint, or whatever an endpoint serves."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from flows.commands.errors import clear_errors
from flows.environment import default_root, prepare

console = Console()


class EvalError(ValueError):
    """Options of `testgrad eval` that do not go together."""


def evaluate(
    root: Annotated[
        Path, typer.Option("--root", help="Where runs, models and pools are kept", default_factory=default_root)
    ],
    model: Annotated[
        Path | None,
        typer.Argument(help="A Hugging Face folder, or a checkpoint (…/global_step_N); none with --endpoint"),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Score what this OpenAI-compatible address serves: http://host:port/v1")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--model", help="With --endpoint: the name it serves the policy by")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="With --endpoint: a tokenizer's folder, to ask in token ids (vLLM) instead of in chat"),
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=16, help="With --endpoint: its context length, where the server does not tell")
    ] = None,
    index: Annotated[
        str, typer.Option(help="Index of tasks; the held-out kata functions if not given")
    ] = "builtin:kata",
    attempts: Annotated[int, typer.Option(min=1, help="Trials of each task")] = 4,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature")] = 0.7,
    max_tasks: Annotated[int | None, typer.Option(min=1, help="Score on this many tasks only")] = None,
    probe: Annotated[bool, typer.Option(help="Ask the model one plain question before trials are spent on it")] = True,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: section.key=value; may be repeated")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON, progress to stderr")] = False,
) -> None:
    """Score a model, a checkpoint or an endpoint: pass@1 from first attempts, pass@k, coverage, intervals.

    An endpoint's key is read from TESTGRAD_ENDPOINT_KEY or OPENAI_API_KEY in the environment. The same command goes on
    with an evaluation that was stopped.
    """
    prepare(root)
    from flows.reports import report_evaluation
    from flows.view import RunView

    options = {"attempts_per_task": attempts, "temperature": temperature, "max_tasks": max_tasks}
    with clear_errors("stopped; the same command goes on with this evaluation"):
        served = _endpoint(model, endpoint, name, tokenizer, window)
        with RunView(Console(stderr=True) if as_json else console).live():
            summary = asyncio.run(_score(model, served, root, index, options, set_ or [], probe))
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    report_evaluation(console, summary)
    console.print(f"record     {summary['record']}", highlight=False, soft_wrap=True)


def _endpoint(model: Path | None, url: str | None, name: str | None, tokenizer: Path | None, window: int | None) -> Any:
    """The endpoint that the options name, None for a model of one's own.

    Raises:
        EvalError: too little was named, or too much.
    """
    from pydantic import ValidationError

    from harness.endpoint import EndpointConfig

    if (model is None) == (url is None):
        raise EvalError("name one policy: a folder or a checkpoint, or --endpoint URL with --model NAME")
    if url is None:
        given = [
            option for option, value in (("--model", name), ("--tokenizer", tokenizer), ("--window", window)) if value
        ]
        if given:
            raise EvalError(f"{', '.join(given)}: only with --endpoint; leave it away")
        return None
    if name is None:
        raise EvalError("--model is missing: the name by which the endpoint serves the policy")
    try:
        return EndpointConfig(url=url, model=name, tokenizer=tokenizer, window=window)
    except ValidationError as error:
        problem = error.errors()[0]
        field = f"--{problem['loc'][0]}" if problem["loc"] else "--tokenizer"
        shown = "--endpoint" if field == "--url" else field
        raise EvalError(f"{shown}: {problem['msg'].removeprefix('Value error, ')}") from error


async def _score(
    model: Path | None,
    endpoint: Any,
    root: Path,
    index: str,
    options: dict[str, Any],
    overrides: list[str],
    probe: bool,
) -> Any:
    from flows.score import score_endpoint, score_model

    if endpoint is not None:
        return await score_endpoint(endpoint, root, index, options, overrides, probe)
    assert model is not None
    return await score_model(model, root, index, options, overrides, probe)
