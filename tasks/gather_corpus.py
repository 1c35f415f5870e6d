"""Before the first step of a warm start: what is learnt from, chosen once and kept in the journal."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import task

from harness.proxy.codec import codec_of
from tasks.config import DataConfig
from tasks.corpus import Corpus, choose, read_accepted, table_metadata, trial_folders
from tasks.demonstrate import LABEL as DEMONSTRATIONS
from tasks.draw import read_groups
from tasks.heldout import HeldOut
from tasks.journal import read_json, write_json, write_table
from tasks.policy import staged
from tasks.run import RunRef
from trainer.supervised import supervised_batch

LABEL = "corpus"
"""The stage whose folder holds these files."""

CORPUS = "corpus.json"
TRAIN = "train.parquet"
VALIDATION = "validation.parquet"


@task(**staged("gather_corpus"))
async def gather_corpus(
    run: RunRef,
    label: str,
    model: Path,
    sources: list[Path],
    heldout: list[Path],
    longest: int,
    per_task: int,
    validation_share: float,
    seed: int,
) -> dict[str, Any]:
    """Write train.parquet and validation.parquet, then corpus.json; the run's own demonstrations are a source too.

    What was chosen once stays chosen: a collection that has grown since changes no run that goes on.
    Returns corpus.json.

    Raises:
        CorpusError: nothing was accepted, or tokens are of another tokenizer.
        HeldOutError: a task is held out.
    """
    folder = run.journal.stage_dir(label)
    known = read_json(folder / CORPUS)
    if known is not None:
        return dict(known)
    return await asyncio.to_thread(
        _gather, run, folder, model, sources, heldout, longest, per_task, validation_share, seed
    )


def _gather(
    run: RunRef, folder: Path, model: Path, sources: Sequence[Path], heldout: Sequence[Path], longest: int,
    per_task: int, validation_share: float, seed: int,
) -> dict[str, Any]:  # fmt: skip
    known = HeldOut()
    for index in heldout:
        known.add_index(index)
    own = [run.journal.root] if run.journal.trials(DEMONSTRATIONS) else []
    left_out: Counter[str] = Counter()
    codec = codec_of(model)
    folders: list[Path] = []
    clusters: dict[str, str] = {}
    for source in [*sources, *own]:
        folders += trial_folders(source)
        home = _run_of(source)
        clusters |= _clusters(home)
        _hold_out(home, known)
    accepted = list(read_accepted(folders, codec, known, left_out))
    known.refuse()
    corpus = choose(
        accepted, left_out, longest=longest, per_task=per_task, validation_share=validation_share, seed=seed,
        clusters=clusters,
    )  # fmt: skip
    return _write(folder, corpus, len(folders))


def _write(folder: Path, corpus: Corpus, trials: int) -> dict[str, Any]:
    parts = {TRAIN: corpus.train, VALIDATION: corpus.validation}
    for name, part in parts.items():
        write_table(folder / name, supervised_batch([rollout for t in part for rollout in t.rollouts]))
    told = {
        "trials": trials,
        "left_out": dict(corpus.left_out),
        "train": table_metadata(folder / TRAIN) | {"tasks": len({t.task_id for t in corpus.train})},
        "validation": table_metadata(folder / VALIDATION) | {"tasks": len({t.task_id for t in corpus.validation})},
        "sessions": sorted(t.session_id for t in corpus.train),
    }
    write_json(folder / CORPUS, told)
    return told


def _run_of(source: Path) -> Path:
    """The folder of the run or the collection whose trials `source` holds, all or some; itself if there is none."""
    places = (source.resolve(), *source.resolve().parents)
    return next((place for place in places[:4] if (place / "config.json").is_file()), source)


def _clusters(source: Path) -> dict[str, str]:
    """What the tasks of a run or a collection belong to, by task id, as its groups say."""
    files = sorted([*source.glob("groups*.parquet"), *source.glob("steps/*/groups*.parquet")])
    return {group.task_id: group.cluster for file in files for group in read_groups(file)}


def _hold_out(source: Path, known: HeldOut) -> None:
    """Hold out the index on which a run's policy is scored, and what the index that it tries marks as held out.

    A collection may be of a held-out index, of which its settings say no more than that.
    """
    stored = read_json(source / "config.json")
    data = stored.get("config", {}).get("data") if isinstance(stored, dict) else None
    if not isinstance(data, dict):
        return
    config, root = DataConfig(**data), source.resolve().parent.parent
    scored, tried = config.heldout_index(root), config.train_index(root)
    if scored != tried and scored.is_file():
        known.add_index(scored)
    if tried.is_file():
        known.add_marked(tried)
