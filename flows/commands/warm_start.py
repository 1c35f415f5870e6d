"""`testgrad warm-start`: teach a policy by example before reinforcement learning."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from flows.commands.errors import clear_errors
from flows.environment import default_root, prepare

console = Console()
_RESUMES = "stopped; the same command goes on where this warm start stopped"


def warm_start(
    root: Annotated[
        Path, typer.Option("--root", help="Where runs, models and pools are kept", default_factory=default_root)
    ],
    name: Annotated[str, typer.Option(help="Names this warm start; the same name goes on where it stopped")],
    from_: Annotated[
        list[str] | None,
        typer.Option(
            "--from", help="Whose accepted trials: a collection, a run as project/experiment, a folder; may be repeated"
        ),
    ] = None,
    demonstrations: Annotated[
        str | None,
        typer.Option(help="An index whose known fixes are learnt from, said as the agent says them; builtin:kata too"),
    ] = None,
    difficulty: Annotated[list[str] | None, typer.Option(help="Demonstrate only tasks of this difficulty")] = None,
    max_demonstrations: Annotated[
        int | None, typer.Option(min=1, help="At most so many demonstrations, evenly over the index")
    ] = None,
    heldout: Annotated[
        list[str] | None, typer.Option(help="An index whose tasks are refused; may be repeated; builtin:kata too")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The policy: a Hugging Face folder, a hub id; the built-in one if not given")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Times that all trajectories are learnt from")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Trajectories of an optimizer step")] = 16,
    lr: Annotated[float, typer.Option(help="Learning rate; it falls as learner.lr_schedule says")] = 1e-5,
    per_task: Annotated[int, typer.Option(min=1, help="Trajectories of one task, at most")] = 4,
    window: Annotated[int, typer.Option(min=16, help="Longest trajectory, in tokens")] = 2048,
    validation: Annotated[float, typer.Option(help="Share that is held back to measure the loss on")] = 0.1,
    validate_every: Annotated[
        int, typer.Option(min=0, help="Steps between measures of that loss; 0: one an epoch")
    ] = 0,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Another order, another part held back")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of learner, scaffold, sandbox, verifier or budgets: section.key=value"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON")] = False,
) -> None:
    """Fine-tune a policy on accepted trajectories, or on the known fixes of tasks, before reinforcement learning.

    Only what the policy itself would say is learnt, and what it is told is not. Writes a Hugging Face folder that
    `testgrad train` starts from.
    """
    prepare(root)
    from flows.warm_start import check_inputs, summary_json
    from flows.warm_start import warm_start as warm_start_flow
    from flows.warm_start_config import warm_start_config
    from flows.warm_start_view import print_warm_start, warm_start_bars

    values: dict[str, Any] = {
        "experiment": name, "heldout": heldout or [], "epochs": epochs, "batch_size": batch_size, "per_task": per_task,
        "window": window,
        "validation_share": validation, "validate_every": validate_every, "save_every": save_every, "seed": seed,
        "learner": {"lr": lr, "lr_schedule": "cosine"},
    }  # fmt: skip
    if model is not None:
        values["model"] = {"path": model}
    if demonstrations is not None:
        values["demonstrations"] = {
            "index": demonstrations, "difficulty": difficulty or [], "most": max_demonstrations,
        }  # fmt: skip
    told = Console(stderr=True) if as_json else console
    with clear_errors(_RESUMES), warm_start_bars(told):
        values["sources"] = [_source(name, root) for name in from_ or []]
        config = warm_start_config(values, set_ or [])
        if not (root / config.project / config.experiment / "config.json").is_file():
            check_inputs(config, root)  # before Prefect starts a server
        summary = asyncio.run(warm_start_flow(config, root))
    if as_json:
        print(summary_json(summary))
    else:
        print_warm_start(console, summary)


def _source(name: str, root: Path) -> Path:
    """The folder of a run or a collection, in which its settings are too; or a folder of trials by itself."""
    from flows.difficulty_report import trials_folder

    folder = trials_folder(name, root).resolve()
    return folder.parent if folder.name == "trials" else folder
