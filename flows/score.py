"""Score a model folder or a checkpoint by itself, with the serving path, sandbox and grading of training."""

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
from flows.configuration.words import from_overrides
from flows.environment import tracking_uri
from flows.evaluate import evaluate
from flows.open_run import open_run
from harness.proxy.codec import ChatCodec
from tasks.coherence import require_coherent
from tasks.journal import Journal, eval_label, read_json, write_json
from tasks.prepare import prepare_pools, prepare_sandbox
from tasks.progress import Event, emit
from tasks.start_engines import stop_engines
from trainer.learner.checkpoint import MARKER
from trainer.learner.export import export_checkpoint
from trainer.model import check_model_folder
from trainer.placement import ray_cluster
from trainer.serving.pool import ReplicaPool

ASKED = "asked.json"
"""In the evaluation's folder: what was asked for, of which weights. Only the same again goes on with what is there."""


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
    asked for again is made again.

    Args:
        probe: Whether the model has to answer a plain question first.

    Raises:
        ModelError: the folder cannot be served.
        CheckpointError: the checkpoint is incomplete.
        IncoherentModel: the model's answer to a plain question makes no sense; no trial was spent.
    """
    model = model.resolve()
    with tempfile.TemporaryDirectory(prefix="testgrad-export-") as scratch:
        folder = export_checkpoint(model, Path(scratch) / "model") if (model / MARKER).is_file() else model
        check_model_folder(folder)
        config = _config(model, index, evaluation, overrides)
        journal = Journal(root / config.project / config.experiment)
        asked = {"config": config.model_dump(mode="json"), "weights": weights_state(model)}
        if _goes_on(journal, asked):
            emit(Event("note", "", f"going on with the evaluation in {journal.root}"))
        else:
            shutil.rmtree(journal.root, ignore_errors=True)
        run = open_run(config, root, tracking_uri(root))
        write_json(journal.root / ASKED, asked)
        await prepare_sandbox(config.sandbox, config.scaffold)
        await prepare_pools(run, config.data, config.rollout)
        with ray_cluster():
            try:
                pool = await ReplicaPool.start(
                    run.name, folder, config.serving, config.learner.gpus_per_rank, run.engine_log_file
                )
                if probe:
                    await require_coherent(pool, await asyncio.to_thread(_codec, folder))
                summary: dict[str, Any] = await evaluate(run, 0, folder)
            finally:
                await stop_engines(run)
    return summary | {"run": run.name, "record": str(run.journal.stage_dir(eval_label(0)) / "record.json")}


def weights_state(model: Path) -> dict[str, list[int]]:
    """Size and time of change of each file of a model's folder: what tells that its weights are others by now."""
    files = sorted(path for path in model.rglob("*") if path.is_file())
    return {
        path.relative_to(model).as_posix(): [status.st_size, status.st_mtime_ns]
        for path in files
        for status in (path.stat(),)
    }


def _goes_on(journal: Journal, asked: dict[str, Any]) -> bool:
    finished = (journal.stage_dir(eval_label(0)) / "record.json").is_file()
    return not finished and read_json(journal.root / ASKED) == asked


def _codec(folder: Path) -> ChatCodec:
    from transformers import AutoTokenizer

    return ChatCodec(AutoTokenizer.from_pretrained(folder))


def _config(model: Path, index: str, evaluation: dict[str, Any], overrides: Sequence[str]) -> RunConfig:
    slug = re.sub(r"[^A-Za-z0-9]+", "-", model.name).strip("-")[:40] or "model"
    name = f"{slug}-{hashlib.sha256(f'{model} {index}'.encode()).hexdigest()[:8]}"
    values = yaml.safe_load((Path(__file__).parent.parent / "deployments" / "runs" / "quickstart.yaml").read_text())
    values |= {"evaluation": evaluation}
    if index != "builtin:kata":
        values["data"] = {"train": index, "heldout": index}
    values["rollout"] |= {"tasks_per_step": 1}
    base = Layer("eval", *flatten(values, "eval"))
    values = nest(merge([base, from_overrides(overrides)]).values)
    # after the overrides: the run of this name is removed before it is made, and must be no other
    return parse_config(values | {"project": "scores", "experiment": name}, "eval")
