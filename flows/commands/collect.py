"""`testgrad collect`: pass rates of a policy on an index, and its trials to choose from or to train on."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from flows.commands.errors import checked, clear_errors
from flows.environment import default_root, prepare

console = Console()


def collect(
    root: Annotated[
        Path, typer.Option("--root", help="Where runs, models and pools are kept", default_factory=default_root)
    ],
    policy: Annotated[
        str | None,
        typer.Argument(
            help="A Hugging Face folder, a checkpoint, project/experiment@STEP or a hub id; the built-in policy if not "
            "given",
            show_default=False,
        ),
    ] = None,
    index: Annotated[
        str, typer.Option(help="Index of tasks; the kata tasks to train on if not given")
    ] = "builtin:kata",
    attempts: Annotated[
        int, typer.Option(min=1, help="Trials of each task; a higher number adds to what is there")
    ] = 4,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; the run config's rollout.temperature if not given")
    ] = None,
    max_tasks: Annotated[
        int | None, typer.Option(min=1, help="Try this many tasks only, spread over the index")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Names the collection; made of policy and settings if not given")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="The run config whose agent, sandbox, limits and serving hold; the policy's own run, else the "
            "quickstart's, if not given"
        ),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible API that serves the policy, up to and with /v1")
    ] = None,
    served_model: Annotated[str | None, typer.Option("--model", help="The model's name at the endpoint")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Its tokenizer's folder: asks the endpoint (vLLM) in token ids, not in chat")
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=16, help="Its context length in tokens; the server is asked if not given")
    ] = None,
    probe: Annotated[bool, typer.Option(help="Ask the model one plain question before trials are spent on it")] = True,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: section.key=value; may be repeated")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Try each task of an index several times: how hard it is for this policy, and what it did.

    The same command goes on where it was stopped. What infrastructure broke is no failure: it is made again. Exit
    status 1 if some trials still do not count.
    """
    prepare(root)
    from flows.collect import CollectConfig
    from flows.collect import collect as flow
    from flows.collect_view import collect_bar, print_collection
    from flows.config import ConfigError

    shown = Console(stderr=True) if as_json else console
    with clear_errors("stopped; the same command goes on where this one stopped"):
        values: dict[str, Any] = {"index": index, "attempts": attempts, "temperature": temperature, "name": name}
        values |= {"max_tasks": max_tasks, "run_config": config, "overrides": set_ or [], "probe": probe}
        if policy is not None:
            values["policy"] = policy
        if endpoint is not None and served_model is not None:
            values["endpoint"] = {"url": endpoint, "model": served_model, "tokenizer": tokenizer, "window": window}
        elif any(value is not None for value in (endpoint, served_model, tokenizer, window)):
            raise ConfigError("--endpoint and --model belong together, --tokenizer and --window to both; give the two")
        if endpoint is not None and policy is not None:
            raise ConfigError(f"name one policy: {policy}, or what --endpoint serves")
        wanted = checked(CollectConfig, **values)
        with collect_bar(shown):
            record = asyncio.run(flow(wanted, root))
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    else:
        print_collection(console, record)
    if record["coverage"] < 1:
        raise typer.Exit(1)
