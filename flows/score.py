"""Score a model folder, a checkpoint or an endpoint, with the serving path, sandbox and grading of training."""

import asyncio
import hashlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from prefect import flow

from flows.config import RunConfig, parse_config
from flows.configuration.layers import Layer, flatten, merge, nest
from flows.configuration.redaction import refuse_secrets
from flows.configuration.words import from_overrides
from flows.diagnosis.process import recorded_end
from flows.environment import tracking_uri
from flows.evaluate import evaluate
from flows.open_run import open_run
from harness.endpoint import EndpointConfig, open_endpoint
from harness.proxy.codec import codec_of
from tasks.coherence import require_coherent, require_coherent_endpoint
from tasks.journal import ASKED, Journal, eval_label, read_json, write_json
from tasks.lease import lease
from tasks.prepare import prepare_pools, prepare_sandbox
from tasks.progress import Event, emit
from tasks.reattach import claim, end_unfit_replicas
from tasks.run import RunRef
from tasks.run_log import logging_to
from tasks.start_engines import stop_engines
from tasks.track_evaluation import training_run_of
from trainer.learner.checkpoint import MARKER
from trainer.learner.export import export_checkpoint
from trainer.model import check_model_folder
from trainer.placement import ray_cluster
from trainer.serving.pool import ReplicaPool


@flow(name="score", flow_run_name="score-{model.name}")
async def score_model(
    model: Path,
    root: Path,
    index: str,
    evaluation: dict[str, Any],
    overrides: Sequence[str] = (),
    probe: bool = True,
) -> dict[str, Any]:
    """Mean reward, pass@1 and pass@k of a Hugging Face folder or a checkpoint on an index.

    One that was stopped goes on where it stopped, if the same is asked of the same weights. A finished one that is
    asked for again is made again. In MLflow, the evaluation of a checkpoint is entered below its training run.

    Args:
        probe: Whether the model has to answer a plain question first.

    Raises:
        ModelError: the folder cannot be served.
        CheckpointError: the checkpoint is incomplete.
        IncoherentModel: the model's answer to a plain question makes no sense; no trial was spent.
        LeaseError: another process makes this evaluation.
    """
    model = model.resolve()
    trained = training_run_of(model, tracking_uri(root))
    with tempfile.TemporaryDirectory(prefix="testgrad-export-") as scratch:
        is_checkpoint = (model / MARKER).is_file()
        folder = await asyncio.to_thread(export_checkpoint, model, Path(scratch) / "model") if is_checkpoint else model
        check_model_folder(folder)
        config = evaluation_config(model.name, str(model), index, evaluation, overrides)
        place = root / config.project / config.experiment
        with lease(place, "evaluate"), recorded_end(place):
            run = await asyncio.to_thread(_open, config, root, {"weights": weights_state(model)})
            await prepare_sandbox(config.sandbox, config.scaffold)
            await prepare_pools(run, config.data, config.rollout)
            with logging_to(run), ray_cluster():
                try:
                    await claim(run)
                    await end_unfit_replicas(run, folder, config.serving)
                    pool = await ReplicaPool.start(
                        run.name, folder, config.serving, config.learner.gpus_per_rank, run.engine_log_file
                    )
                    if probe:
                        await require_coherent(pool, await asyncio.to_thread(codec_of, folder))
                    summary: dict[str, Any] = await evaluate(run, 0, folder, None, *(trained or (None, None)))
                finally:
                    await stop_engines(run)
    return summary | _where(run)


@flow(name="score-endpoint", flow_run_name="score-{endpoint.model}")
async def score_endpoint(
    endpoint: EndpointConfig,
    root: Path,
    index: str,
    evaluation: dict[str, Any],
    overrides: Sequence[str] = (),
    probe: bool = True,
) -> dict[str, Any]:
    """`score_model` of a policy that is served elsewhere, over its API; no engine is started.

    An endpoint may serve other weights under the same name tomorrow: what is asked again within one evaluation is taken
    to be the same.

    Raises:
        EndpointRefused: wrong key, address or model.
        EndpointError: it does not answer.
        IncoherentModel: its answer to a plain question makes no sense; no trial was spent.
    """
    async with open_endpoint(endpoint) as opened:
        config = evaluation_config(
            endpoint.model,
            f"{endpoint.url} {endpoint.model}",
            index,
            evaluation,
            overrides,
            endpoint_settings(endpoint, opened.window),
        )
        if probe:
            await require_coherent_endpoint(opened)
        endpoint = endpoint.model_copy(update={"window": opened.window})
    place = root / config.project / config.experiment
    with lease(place, "evaluate"), recorded_end(place):
        run = await asyncio.to_thread(_open, config, root, {"endpoint": endpoint.model_dump(mode="json")})
        await prepare_sandbox(config.sandbox, config.scaffold)
        await prepare_pools(run, config.data, config.rollout)
        with logging_to(run):
            summary: dict[str, Any] = await evaluate(run, 0, root, endpoint)
    return summary | _where(run)


def _open(config: RunConfig, root: Path, what: dict[str, Any]) -> RunRef:
    """The evaluation's own run: as it is if the same was asked and is unfinished, else anew."""
    journal = Journal(root / config.project / config.experiment)
    asked = {"config": config.model_dump(mode="json")} | what
    if _goes_on(journal, asked):
        emit(Event("note", "", f"going on with the evaluation in {journal.root}"))
    else:
        _empty(journal.root)
    run = open_run(config, root, tracking_uri(root))
    write_json(journal.root / ASKED, asked)
    return run


def _empty(folder: Path) -> None:
    """Remove what an earlier evaluation left; the lease stays with its holder."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif "lease" not in path.name:
            path.unlink()


def _where(run: RunRef) -> dict[str, Any]:
    return {"run": run.name, "record": str(run.journal.stage_dir(eval_label(0)) / "record.json")}


def endpoint_settings(endpoint: EndpointConfig, window: int) -> dict[str, Any]:
    """Settings that fit a policy of any size. The server reads calls itself, unless it is asked in token ids."""
    return {
        "rollout.max_tokens_per_turn": min(4096, window // 4),
        "serving.window": window,
        "serving.tool_call_parser": None if endpoint.tokenizer else "hermes",
    }


def is_scored(root: Path, model: Path, index: str, evaluation: dict[str, Any], overrides: Sequence[str]) -> bool:
    """Whether `score_model` has been asked the same of the same weights, and has finished."""
    model = model.resolve()
    config = evaluation_config(model.name, str(model), index, evaluation, overrides)
    journal = Journal(root / config.project / config.experiment)
    asked = {"config": config.model_dump(mode="json"), "weights": weights_state(model)}
    return _is_finished(journal) and read_json(journal.root / ASKED) == asked


def weights_state(model: Path) -> dict[str, list[int]]:
    """Size and time of change of each file of a model's folder: what tells that its weights are others by now."""
    files = sorted(path for path in model.rglob("*") if path.is_file())
    return {
        path.relative_to(model).as_posix(): [status.st_size, status.st_mtime_ns]
        for path in files
        for status in (path.stat(),)
    }


def _goes_on(journal: Journal, asked: dict[str, Any]) -> bool:
    return not _is_finished(journal) and read_json(journal.root / ASKED) == asked


def _is_finished(journal: Journal) -> bool:
    return (journal.stage_dir(eval_label(0)) / "record.json").is_file()


def evaluation_config(
    name: str,
    policy: str,
    index: str,
    evaluation: dict[str, Any],
    overrides: Sequence[str],
    base: dict[str, Any] | None = None,
) -> RunConfig:
    """The config of an evaluation.

    Args:
        name: What a person calls the policy.
        policy: What tells it from others: with the index, this names the evaluation.
        base: Settings, by section.key, in the place of the quickstart's; `overrides` win over them.
    """
    slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40] or "model"
    experiment = f"{slug}-{hashlib.sha256(f'{policy} {index}'.encode()).hexdigest()[:8]}"
    values = yaml.safe_load((Path(__file__).parent.parent / "deployments" / "runs" / "quickstart.yaml").read_text())
    values |= {"evaluation": evaluation}
    if index != "builtin:kata":
        values["data"] = {"train": index, "heldout": index}
    values["rollout"] |= {"tasks_per_step": 1}
    layers = [Layer("eval", *flatten(values, "eval")), Layer("endpoint", base or {}), from_overrides(overrides)]
    refuse_secrets(layers)
    values = nest(merge(layers).values)
    # after the overrides: the run of this name is removed before it is made, and must be no other
    return parse_config(values | {"project": "scores", "experiment": experiment}, "eval")
