"""Roll a policy out over an index, outside of any training: how hard each task is for it, and what it did there."""

import asyncio
import hashlib
import json
import re
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import flow
from pydantic import BaseModel, ConfigDict, Field

from flows.collect_report import write_collection_report
from flows.config import NAME, ConfigError, RunConfig, load_config, parse_config
from flows.diagnosis.process import recorded_end
from flows.environment import default_root, tracking_uri
from flows.form_order import in_order
from flows.score import endpoint_settings, weights_state
from harness.endpoint import EndpointConfig, open_endpoint
from harness.pool.index import TaskPointer, read_index
from harness.pool.kata import build_pool
from harness.pool.task import Task
from harness.proxy.codec import codec_of
from tasks.coherence import require_coherent, require_coherent_endpoint
from tasks.collect_trials import collect_trials
from tasks.collection import LABEL, CollectionSettings, missing, standing, write_groups
from tasks.config import BUILTIN_KATA
from tasks.draw import spread
from tasks.journal import ASKED, Journal, read_json, write_json
from tasks.lease import lease
from tasks.prepare import prepare_sandbox
from tasks.progress import Event, emit
from tasks.reattach import claim, end_unfit_replicas
from tasks.run import RunRef
from tasks.run_log import logging_to
from tasks.start_engines import stop_engines
from tasks.summarise_collection import RATES, summarise_collection
from tasks.tracing import trace_trials
from tasks.track_run import tracked
from tasks.tracking import Tracker
from trainer.learner.checkpoint import MARKER
from trainer.learner.export import export_checkpoint
from trainer.model import BUILTIN, ModelConfig, check_model_folder, resolve_model
from trainer.placement import ray_cluster
from trainer.rollout import Sampling
from trainer.serving.pool import ReplicaPool

PROJECT = "collections"

_RUN = re.compile(r"(?P<run>[^/@]+/[^/@]+)(@(?P<step>\d+))?")
_QUICKSTART = Path(__file__).parent.parent / "deployments" / "runs" / "quickstart.yaml"


class CollectConfig(BaseModel):
    """What is to be collected."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=in_order)

    policy: str = Field(
        BUILTIN,
        min_length=1,
        description="A Hugging Face folder, a checkpoint, `project/experiment@STEP`, a hub id, or the built-in policy",
    )
    index: str = Field(BUILTIN_KATA, description=f"Index of the tasks, or `{BUILTIN_KATA}` for the tasks to train on")
    attempts: int = Field(4, ge=1, description="Trials of each task; raise it to go on with a finished collection")
    endpoint: EndpointConfig | None = Field(
        None, description="Who serves the policy in place of `policy`: any OpenAI-compatible API"
    )
    max_tasks: int | None = Field(
        None, ge=1, description="Try this many tasks only, spread over the index; all if unset"
    )
    temperature: float | None = Field(
        None, gt=0, le=10, description="Sampling temperature; the run config's rollout.temperature if unset"
    )
    name: str | None = Field(
        None, pattern=NAME, description="Names the collection; made of policy, index and settings if unset"
    )
    run_config: Path | None = Field(
        None, description="The run whose agent, sandbox and limits hold; the policy's own run, or the quickstart's"
    )
    overrides: list[str] = Field([], description="Settings of that run in place of its own: section.key=value")
    probe: bool = Field(True, description="Ask the model one plain question before trials are spent on it")

    @property
    def asked(self) -> str:
        """Whom it is of, for people."""
        return self.policy if self.endpoint is None else self.endpoint.model


@flow(name="collect", flow_run_name="collect-{config.asked}", persist_result=True, result_serializer="json")
async def collect(config: CollectConfig, root: Path | None = None) -> dict[str, Any]:
    """Pass rates of a policy on the tasks of an index, and its trials as a run's journal holds them.

    The same call goes on where an earlier one was stopped, and makes anew what infrastructure broke. More attempts, or
    more tasks that an index has at its end, are added to what is there.

    Args:
        config: What is to be collected.
        root: Where runs, models and pools are kept; `runs` if unset.

    Raises:
        ConfigError: the policy is none, or a collection of this name is of something else.
        LeaseError: another process fills this collection.
        CollectionError: tasks changed since their trials were made.
        EndpointRefused: wrong key, address or model.
        IncoherentModel: the model's answer to a plain question makes no sense; no trial was spent.
    """
    root = (root or default_root()).resolve()
    policy = await asyncio.to_thread(find_policy, config, root)
    tasks = await asyncio.to_thread(_tasks, config, root)
    window = await _ask_endpoint(policy.endpoint, config.probe) if policy.endpoint else None
    settings = run_settings(config, policy, window)
    asked = what_is_asked(config, policy, settings)
    run = _run(config, policy, root, asked)
    with lease(run.journal.root, "collect"), recorded_end(run.journal.root), logging_to(run):
        await asyncio.to_thread(_open, run, settings, asked)
        groups = await asyncio.to_thread(write_groups, run, tasks, config.attempts)
        there = await asyncio.to_thread(standing, run, groups)
        lacking = len(missing(groups, there.ended))
        emit(Event("note", "", f"collection in {run.journal.root}: {there.ended.total()} trials are there already"))
        done: dict[str, Any] = {"counted": 0, "lost": 0, "seconds": 0.0, "stopped": None}
        if lacking or there.ungraded:
            await prepare_sandbox(settings.sandbox, settings.scaffold)
            done = await _fill(run, policy, settings, config.probe)
        record = await summarise_collection(run, done)
        report = await asyncio.to_thread(write_collection_report, run.journal.root, tasks, record)
        if done["counted"]:
            await asyncio.to_thread(_track, run, settings, record, report)
    return record | {"folder": str(run.journal.root), "report": str(report)}


@dataclass(frozen=True)
class FoundPolicy:
    """Where the weights are, None for those of an endpoint, and the config of the run that made them, if a run did."""

    name: str
    folder: Path | None
    run_config: Path | None = None
    endpoint: EndpointConfig | None = None


def find_policy(config: CollectConfig, root: Path) -> FoundPolicy:
    """The policy that is asked for.

    Raises:
        ConfigError: the run it names has no such checkpoint.
        ModelError: it is no folder, no hub id, or cannot be served.
    """
    if config.endpoint is not None:
        return FoundPolicy(f"{config.endpoint.model} at {config.endpoint.url}", None, endpoint=config.endpoint)
    name = config.policy
    folder = Path(name).expanduser()
    if folder.is_dir():
        folder = folder.resolve()
        of_run = folder.parent.parent / "config.json"
        is_of_a_run = (folder / MARKER).is_file() and of_run.is_file()
        return FoundPolicy(folder.name, folder, of_run if is_of_a_run else None)
    match = _RUN.fullmatch(name)
    if match is not None and (root / match["run"] / "config.json").is_file():
        journal = Journal(root / match["run"])
        places = _weights(journal)
        step = int(match["step"]) if match["step"] else max(places, default=0)
        if step not in places:
            told = f"there are some after {', '.join(map(str, sorted(places)))}" if places else "there are none"
            raise ConfigError(f"policy: {match['run']} has no weights after step {step}; {told}")
        return FoundPolicy(f"{match['run']}@{step}", places[step], journal.root / "config.json")
    if match is not None and match["step"]:
        raise ConfigError(f"policy: there is no run {match['run']} in {root}; name it as project/experiment@STEP")
    return FoundPolicy(name, resolve_model(ModelConfig(path=name), root))


def _weights(journal: Journal) -> dict[int, Path]:
    """Where the weights of a run are by step: in checkpoints, or exported when it was pruned."""
    exported = journal.root.glob("exports/global_step_*/config.json")
    found = [path.parent for path in (*exported, *journal.checkpoints.glob(f"global_step_*/{MARKER}"))]
    return {int(folder.name.rpartition("_")[2]): folder for folder in found}


def run_settings(config: CollectConfig, policy: FoundPolicy, window: int | None = None) -> RunConfig:
    """The run config whose agent, sandbox, limits and serving hold, under the collection's names.

    An endpoint has no run of its own: without a run config, its answers may be as long as its `window` lets them.

    Raises:
        ConfigError: it cannot run.
    """
    fitting = [
        f"{key}={json.dumps(value)}"
        for key, value in (endpoint_settings(policy.endpoint, window) if policy.endpoint and window else {}).items()
        if config.run_config is None
    ]
    base = load_config(config.run_config or policy.run_config or _QUICKSTART, [*fitting, *config.overrides])
    values = base.model_dump(mode="json") | {"project": PROJECT, "experiment": config.name or PROJECT}
    # whole, so that it is found again from elsewhere: a warm start asks it which of its tasks are held out
    index = config.index if config.index == BUILTIN_KATA else str(Path(config.index).expanduser().resolve())
    values["data"] = {"train": index, "heldout": index}
    if config.temperature is not None:
        values["rollout"]["temperature"] = config.temperature
    return parse_config(values, "collect")


def what_is_asked(config: CollectConfig, policy: FoundPolicy, settings: RunConfig) -> dict[str, Any]:
    """All that a trial's result depends on besides its task: the weights, how they sample, the agent and its limits."""
    depends = settings.model_dump(
        mode="json", include={"scaffold": True, "sandbox": True, "verifier": True, "budgets": True, "plugins": True}
    )
    serving = {"window", "dtype", "tool_call_parser", "reasoning_parser"}
    return {
        "policy": policy.name,
        "weights": weights_state(policy.folder) if policy.folder else {},
        "index": config.index,
        "settings": json.loads(json.dumps(depends)) | {"serving": settings.serving.model_dump(include=serving)},
        "sampling": {
            "temperature": settings.rollout.temperature,
            "top_p": settings.rollout.top_p,
            "max_tokens": settings.rollout.max_tokens_per_turn,
        },
    }


def trial_settings(settings: RunConfig) -> CollectionSettings:
    """How trials are made, from a run config: as its training steps make them."""
    rollout = settings.rollout
    return CollectionSettings(
        sampling=Sampling(rollout.temperature, rollout.top_p, rollout.max_tokens_per_turn),
        window=settings.serving.window,
        scaffold=settings.scaffold,
        sandbox=settings.sandbox,
        verifier=settings.verifier,
        budgets=settings.budgets,
        concurrency=rollout.concurrency,
        infra_attempts=rollout.infra_attempts,
    )


async def _fill(run: RunRef, policy: FoundPolicy, settings: RunConfig, probe: bool) -> dict[str, Any]:
    """Make what is missing, with MLflow told that it goes on."""
    async with tracked(run, settings.model_dump(mode="json")):
        if policy.folder is not None:
            return await _with_engines(run, policy.folder, settings, probe)
        return dict(await collect_trials(run, trial_settings(settings), settings.serving, endpoint=policy.endpoint))


async def _with_engines(run: RunRef, model: Path, settings: RunConfig, probe: bool) -> dict[str, Any]:
    """Serve the policy, make what is missing, and stop serving."""
    serving = settings.serving
    async with _servable(model) as folder:
        with ray_cluster():
            try:
                await claim(run)
                await end_unfit_replicas(run, folder, serving)
                emit(Event("note", "", "starting the engine (vLLM)"))
                pool = await ReplicaPool.start(
                    run.name, folder, serving, settings.learner.gpus_per_rank, run.engine_log_file
                )
                if probe:
                    await require_coherent(pool, await asyncio.to_thread(codec_of, folder))
                return dict(await collect_trials(run, trial_settings(settings), serving, str(folder)))
            finally:
                await stop_engines(run)


async def _ask_endpoint(endpoint: EndpointConfig, probe: bool) -> int:
    """The endpoint's window, after it has answered."""
    async with open_endpoint(endpoint) as opened:
        if probe:
            await require_coherent_endpoint(opened)
        return opened.window


@asynccontextmanager
async def _servable(model: Path) -> AsyncIterator[Path]:
    """The policy as a Hugging Face folder; of a checkpoint one is made, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="testgrad-export-") as scratch:
        is_checkpoint = (model / MARKER).is_file()
        folder = await asyncio.to_thread(export_checkpoint, model, Path(scratch) / "model") if is_checkpoint else model
        check_model_folder(folder)
        yield folder


def _tasks(config: CollectConfig, root: Path) -> list[TaskPointer]:
    """The tasks to be tried, each of them readable.

    Raises:
        PoolError: the index cannot be used.
        TaskError: a task in it is none.
    """
    if config.index == BUILTIN_KATA:
        index = build_pool(root / "pools" / "kata").train
    else:
        index = Path(config.index).expanduser()
    tasks = spread(read_index(index), config.max_tasks)
    for task in tasks:
        Task.load(task.task_path)
    return tasks


def _run(config: CollectConfig, policy: FoundPolicy, root: Path, asked: dict[str, Any]) -> RunRef:
    """The collection's names and places; its nonce is that of its folder, if there is one."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", policy.name).strip("-")[:40] or "policy"
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]
    name = config.name or f"{slug}-{digest}"
    stored = read_json(root / PROJECT / name / "config.json") or {}
    nonce = stored.get("nonce") or uuid.uuid4().hex[:8]
    return RunRef(project=PROJECT, experiment=name, root=root, nonce=nonce, tracking_uri=tracking_uri(root))


def _open(run: RunRef, settings: RunConfig, asked: dict[str, Any]) -> None:
    """Write config.json and asked.json, or find that they are of the same collection.

    Raises:
        ConfigError: trials of another policy, other tasks or other settings are there; together they mean nothing.
    """
    folder = run.journal.root
    before = read_json(folder / ASKED)
    if before is not None and before != asked:
        changed = ", ".join(sorted(key for key in asked if before.get(key) != asked[key]))
        raise ConfigError(
            f"collection {run.experiment} is of something else ({changed} differ); choose another name, or remove "
            f"{folder} to start anew"
        )
    write_json(
        folder / "config.json",
        {
            "nonce": run.nonce,
            "identity": settings.identity(),
            "config": settings.model_dump(mode="json") | {"experiment": run.experiment},
        },
    )
    write_json(folder / ASKED, asked)


def _track(run: RunRef, settings: RunConfig, record: dict[str, Any], report: Path) -> None:
    """Rates, files and some traces to MLflow; a point for each time that the collection grew.

    The folder has it all, and MLflow is for looking at: a server that takes nothing costs no collection.
    """
    try:
        _enter(run, record, report)
        trace_trials(run, LABEL, 0, settings.tracing)
    except Exception as error:
        emit(Event("note", "", f"the collection is not in MLflow as a whole ({type(error).__name__}: {error})"))


def _enter(run: RunRef, record: dict[str, Any], report: Path) -> None:
    tracker = Tracker.open(run)
    names = ("mean_pass_rate", "coverage", "tasks", "measured", "mixed", "counted", "lost")
    metrics = {f"collect/{name}": float(record[name]) for name in names if record[name] is not None}
    metrics["collect/seconds"] = record["done"]["seconds"]
    metrics |= {f"collect/band_{name}": float(count) for name, count in record["bands"].items()}
    tracker.log_step(record["counted"], metrics)
    for file in (run.journal.root / RATES, report, report.with_suffix(".png")):
        if file.is_file():
            tracker.log_artifact(file)
