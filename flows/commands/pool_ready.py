"""`testgrad pool fill` and `pool admit`: imported tasks are given their snapshots, and proven where trials will run."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.errors import clear_errors
from flows.commands.pool import Index, Output, Repos, Variable, console, pool_app, say


@pool_app.command()
def fill(
    index: Index,
    images: Annotated[
        bool, typer.Option("--images", help="Take them out of the tasks' images: the Docker engine is DOCKER_HOST's")
    ] = False,
    repos: Repos = None,
    tars: Annotated[
        Path | None, typer.Option(help="Folder with ID.tar: docker cp $(docker create IMAGE):WORKDIR - > ID.tar")
    ] = None,
) -> None:
    """Give pending tasks their snapshots: out of their images, from local clones, or from archives."""
    from flows.pool_view import rejected_table
    from harness.pool.importers.fill import fill_index
    from harness.pool.importers.images import KEPT, ImageSnapshots
    from harness.sandbox.docker_config import DockerConfig

    with clear_errors("stopped; the same command goes on where this one stopped"):
        source = ImageSnapshots(DockerConfig(), index.resolve().parent / KEPT) if images else None
        with console.status("filling", spinner_style="dim") as status:
            filled, rejected = fill_index(
                index, repos=repos, tars=tars, images=source,
                progress=lambda done, left: status.update(f"{done} tasks filled, {left} not"),
            )  # fmt: skip
        if rejected:
            console.print(rejected_table(rejected))
        say(f"{filled} tasks filled, {len(rejected)} left pending")
    if rejected:
        raise typer.Exit(1)


@pool_app.command()
def admit(
    index: Index,
    output: Output,
    config: Annotated[Path | None, typer.Option(help="A run config: its sandbox and verifier are used")] = None,
    backend: Annotated[str | None, typer.Option(help="The sandbox's backend, in place of the configured one")] = None,
    runs: Annotated[int, typer.Option(min=3, help="Gradings of nothing done and of the solution, each")] = 3,
    workers: Annotated[int, typer.Option(min=1, help="Gradings at a time")] = 2,
    variable: Variable = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts and reasons as JSON")] = False,
) -> None:
    """Keep the tasks that nothing done fails and their solution passes, each time, in fresh sandboxes."""
    from flows.pool_view import rejected_table
    from harness.pool.importers import Rejected
    from harness.pool.index import PoolError, read_index, write_index
    from harness.pool.proofs import ProofConfig, prove_tasks
    from harness.sandbox import SandboxConfig, require_isolation

    with clear_errors("stopped; the same command goes on where this one stopped"):
        sandbox, verifier = SandboxConfig(), None
        if config is not None:
            from flows.config import load_config  # takes the learner's and the engine's sections along

            loaded = load_config(config)
            sandbox, verifier = loaded.sandbox, loaded.verifier
        if backend is not None:
            sandbox = sandbox.model_copy(update={"backend": backend})
        require_isolation(sandbox)
        rows = read_index(index)
        record = index.resolve().with_suffix(".admissions.jsonl")
        with console.status("grading", spinner_style="dim") as status:
            proven = asyncio.run(prove_tasks(
                rows, ProofConfig(sandbox, verifier, runs, workers), record,
                lambda done: status.update(f"{done} of {len(rows)} tasks graded"),
            ))  # fmt: skip
        kept = [row for row, answer in proven if answer.admitted]
        left_out = [(row, answer.reason) for row, answer in proven if not answer.admitted]
        rejected = [Rejected(row.instance_id, str(row.task_path), reason) for row, reason in left_out]
        if as_json:
            reasons = {entry.instance_id: entry.reason for entry in rejected}
            typer.echo(json.dumps({"admitted": len(kept), "rejected": reasons, "index": str(output)}, indent=2))
        elif rejected:
            console.print(rejected_table(rejected))
        if not kept:
            raise PoolError(f"none of the {len(rows)} tasks of {index} is admitted, so {output} is not written")
        write_index(kept, output, variable)
        if not as_json:
            say(f"{len(kept)} of {len(rows)} tasks admitted, in {output}")
    if any(not answer.final for _, answer in proven):
        raise typer.Exit(1)
