"""What a warm start learns from: accepted trajectories, as their trials' token records have them."""

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from harness.proxy.codec import ChatCodec
from harness.trajectory import tokens_of
from harness.verifier.verdict import Status
from tasks.heldout import HeldOut
from tasks.journal import JournalError
from tasks.trial_files import StoredTrial, load_trial
from trainer.rollout import Rollout

_EVALUATION = re.compile(r"eval_step_\d+")
_COMPARED_CHARS = 200


class CorpusError(ValueError):
    """Trials that cannot be learnt from, or none at all; the message names the folder and the mend."""


@dataclass(frozen=True)
class Trajectory:
    """An accepted trial. `cluster` is what its task belongs to; of one, all trajectories are on one side of a split."""

    session_id: str
    task_id: str
    cluster: str
    rollouts: tuple[Rollout, ...]

    @property
    def spoken(self) -> str:
        """Digest of all tokens and masks: two of one task that are equal teach the same."""
        digest = hashlib.sha256()
        for rollout in self.rollouts:
            digest.update(json.dumps([list(rollout.token_ids), list(rollout.loss_mask)]).encode())
        return digest.hexdigest()

    @property
    def longest(self) -> int:
        """Tokens of its longest segment."""
        return max(len(rollout.token_ids) for rollout in self.rollouts)


@dataclass(frozen=True)
class Corpus:
    """Trajectories to train on and to measure on, and how many were left out for which reason."""

    train: Sequence[Trajectory]
    validation: Sequence[Trajectory]
    left_out: Mapping[str, int]


def trial_folders(source: Path) -> list[Path]:
    """Folders of the trials below `source`: a run's journal, a collection, or a folder of trials.

    Trials of a run's evaluations are not among them.

    Raises:
        CorpusError: there is no such folder, it holds trials of an evaluation, or none at all.
    """
    if not source.is_dir():
        raise CorpusError(f"{source}: no such folder; give that of a run, a collection, or of trials")
    if any(_EVALUATION.fullmatch(part) for part in source.resolve().parts):
        raise CorpusError(
            f"{source}: these are trials of an evaluation, whose tasks are held out; learn from the trials of a "
            "collection or of training"
        )
    root = source / "trials" if (source / "trials").is_dir() else source
    folders = [
        file.parent
        for file in sorted(root.rglob("trial.json"))
        if not any(_EVALUATION.fullmatch(part) for part in file.relative_to(root).parts)
    ]
    if not folders:
        raise CorpusError(f"{source}: it holds no trial; give the folder of a run or a collection that has made some")
    return folders


def read_accepted(
    folders: Iterable[Path], codec: ChatCodec, heldout: HeldOut, left_out: Counter[str]
) -> Iterator[Trajectory]:
    """The accepted ones of trials: reward 1, by a verdict, and with sampled tokens. Others are counted by reason.

    Tokens are taken as they are, and checked: the loss mask must be 1 on exactly the ids that the trajectory says were
    sampled, and the tokenizer of `codec` must read the answers in them that the agent was told.

    Raises:
        CorpusError: tokens of another tokenizer.
        JournalError: token record and trajectory contradict each other.
    """
    for folder in folders:
        trial = load_trial(folder)
        heldout.look_at(str(trial.record["task_id"]), Path(trial.record["task_path"]))
        reason = _not_accepted(trial)
        if reason is not None:
            left_out[reason] += 1
            continue
        rollouts = tuple(trial.rollouts())
        if (folder / "trajectory.json").is_file():
            _check_tokens(trial, rollouts, codec)
        task_id = str(trial.record["task_id"])
        yield Trajectory(trial.session_id, task_id, task_id, rollouts)


def choose(
    trajectories: Iterable[Trajectory],
    left_out: Counter[str],
    *,
    longest: int,
    per_task: int,
    validation_share: float,
    seed: int,
    clusters: Mapping[str, str],
) -> Corpus:
    """The corpus: nothing twice, nothing too long, of a task at most `per_task`; a share of the clusters held back.

    What is chosen depends on the seed and on what there is, not on the order in which it comes.

    Args:
        clusters: What each task belongs to, by task id; a task that is not named is its own.

    Raises:
        CorpusError: nothing is left to train on.
    """
    by_task: dict[str, list[Trajectory]] = defaultdict(list)
    sessions: set[str] = set()
    for trajectory in trajectories:
        if trajectory.session_id in sessions:
            left_out["repeated"] += 1
        elif trajectory.longest > longest:
            left_out["too_long"] += 1
        else:
            by_task[trajectory.task_id].append(trajectory)
        sessions.add(trajectory.session_id)
    chosen: list[Trajectory] = []
    for task_id in sorted(by_task):
        ordered = sorted(by_task[task_id], key=lambda t: _draw(seed, t.session_id))
        distinct = list({t.spoken: t for t in reversed(ordered)}.values())[::-1]
        left_out["repeated"] += len(ordered) - len(distinct)
        left_out["more_of_a_task"] += len(distinct[per_task:])
        chosen += distinct[:per_task]
    if not chosen:
        told = ", ".join(f"{name} {count}" for name, count in sorted(left_out.items()) if count) or "no trial was given"
        raise CorpusError(f"there is no accepted trajectory to learn from ({told}); collect trials that earn reward 1")
    chosen = [
        Trajectory(t.session_id, t.task_id, clusters.get(t.task_id, t.task_id), t.rollouts) for t in chosen
    ]  # fmt: skip
    held = _held_back({t.cluster for t in chosen}, Counter(t.cluster for t in chosen), validation_share, seed)
    train = [t for t in chosen if t.cluster not in held]
    return Corpus(train, [t for t in chosen if t.cluster in held], {k: n for k, n in sorted(left_out.items()) if n})


def _not_accepted(trial: StoredTrial) -> str | None:
    if trial.verdict is None or trial.verdict.status is Status.INFRA_ERROR:
        return "not_graded"
    if trial.verdict.status is not Status.PASSED:
        return "not_passed"
    if not trial.record["trained_segments"] or not (trial.folder / "rollout.parquet").is_file():
        return "no_tokens"
    return None


def _check_tokens(trial: StoredTrial, rollouts: Sequence[Rollout], codec: ChatCodec) -> None:
    trajectory = trial.trajectory()
    for rollout in rollouts:
        told = tokens_of(trajectory, rollout.segment)
        if (told.token_ids, told.loss_mask) != (list(rollout.token_ids), list(rollout.loss_mask)):
            raise JournalError(
                f"{trial.folder}: rollout.parquet and trajectory.json differ in segment {rollout.segment} on which "
                "tokens were sampled; remove the trial"
            )
    for segment in trajectory["segments"]:
        for turn in segment["turns"]:
            said = str(turn["answer"].get("content") or "").strip()[:_COMPARED_CHARS]
            if said not in _read(codec, turn["sampled_ids"]):
                raise CorpusError(
                    f"{trial.folder}: the model's tokenizer reads other words in the sampled tokens than the agent was "
                    "told, so they are another model's; learn from trials of a policy with the same tokenizer"
                )


def _read(codec: ChatCodec, token_ids: Sequence[int]) -> str:
    try:
        return codec.decode(token_ids)
    except (IndexError, OverflowError, TypeError):
        return ""  # ids that the vocabulary does not have


def _held_back(clusters: set[str], sizes: Mapping[str, int], share: float, seed: int) -> set[str]:
    """Clusters for validation: so many that they have about this share of all, and never all of them."""
    held: set[str] = set()
    wanted, total = share * sum(sizes.values()), 0
    for cluster in sorted(clusters, key=lambda name: _draw(seed, name))[: len(clusters) - 1]:
        if total >= wanted:
            break
        held.add(cluster)
        total += sizes[cluster]
    return held


def _draw(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}:{name}".encode()).hexdigest()


def table_metadata(path: Path) -> dict[str, Any]:
    """Trajectories, segments and tokens to learn from in a batch."""
    table = pq.read_table(path, columns=["session_id", "loss_mask"])
    return {
        "trajectories": len(set(table.column("session_id").to_pylist())),
        "segments": table.num_rows,
        "tokens": sum(sum(mask) for mask in table.column("loss_mask").to_pylist()),
    }
