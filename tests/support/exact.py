"""Runs the learner's ranks in processes of their own, without Ray, and the same training in plain PyTorch."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

TEMPERATURE = 0.8
LR = 1e-4
ENTROPY = 0.05
ALGORITHM: dict[str, Any] = {
    "policy_loss": "ppo",
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.2,
    "loss_agg": "token-mean",
    "entropy_coeff": ENTROPY,
    "rollout_correction": {"mode": "off"},
}


@dataclass(frozen=True)
class Variant:
    """A way to compute the same training, and the numbers of ranks on which it is tried even in a short run.

    In step `spoiled` the last rank's log-probs are infinite. `algorithm` are fields that differ from `ALGORITHM`;
    `model` and `batch` are others than those of the run. `probed` asks for more than metrics and weights.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    steps: int = 20
    spoiled: int | None = None
    ranks: tuple[int, ...] = (1, 2)
    algorithm: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    batch: str | None = None
    probed: bool = False


def run_ranks(folder: Path, model: Path, batch: Path, ranks: int, variants: Sequence[Variant]) -> dict[str, Any]:
    """Metrics of each step, and the weights after the last, by variant; all variants in the same processes.

    Of variants that are probed also what `score` says at last, and the most numbers that a rank kept of a row for its
    backward pass.
    """
    store = torch.distributed.TCPStore("127.0.0.1", 0, ranks + 1, True, timedelta(seconds=60), wait_for_workers=False)
    job = {"model": str(model), "batch": str(batch), "ranks": ranks, "variants": [asdict(v) for v in variants]}
    out = folder / f"ranks-{ranks}"
    out.mkdir()
    (out / "job.json").write_text(json.dumps(job))
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, [Path(__file__).parents[1], Path(__file__).parents[2]])),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "support.exact", str(out), str(rank), str(store.port)],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        for process in processes:
            _, errors = process.communicate(timeout=600)
            assert process.returncode == 0, errors[-3000:]
    finally:
        for process in processes:
            process.kill()
    return {variant.name: torch.load(out / f"{variant.name}.pt", weights_only=True) for variant in variants}


def train_plainly(model: Any, samples: Sequence[Any], steps: int, skip: int | None = None) -> list[dict[str, float]]:
    """The same by padding, all logits and torch's own AdamW, all in one batch. Returns each step's losses."""
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=LR, betas=(0.9, 0.95), weight_decay=0.0
    )
    longest = max(len(sample.token_ids) for sample in samples)
    ids, attend, mask = (torch.zeros(len(samples), longest, dtype=torch.long) for _ in range(3))
    advantages = torch.zeros(len(samples), longest)
    for i, sample in enumerate(samples):
        length = len(sample.token_ids)
        ids[i, :length], attend[i, :length] = torch.tensor(sample.token_ids), 1
        mask[i, :length] = torch.tensor(sample.loss_mask)
        advantages[i, :length][mask[i, :length] == 1] = torch.from_numpy(sample.columns["advantages"])
    trained = mask[:, 1:].bool()
    records = []
    for step in range(1, steps + 1):
        if step == skip:
            records.append({})
            continue
        logits = model(input_ids=ids, attention_mask=attend, use_cache=False).logits[:, :-1].float()
        logprobs = torch.log_softmax(logits / TEMPERATURE, -1)
        taken = logprobs.gather(-1, ids[:, 1:, None])[..., 0][trained]
        entropy = -(logprobs.exp() * logprobs).sum(-1)[trained].mean()
        ratio = torch.exp(taken - taken.detach())
        pg_loss = -(advantages[:, 1:][trained] * ratio).mean()
        optimizer.zero_grad()
        (pg_loss - ENTROPY * entropy).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        records.append(
            {"actor/pg_loss": pg_loss.item(), "actor/entropy_loss": entropy.item(), "actor/grad_norm": norm.item()}
        )
    return records


def count_kept(model: Any) -> list[int]:
    """A list that gets, for each row that the model computes, how many numbers are kept for its backward pass.

    Weights are not counted, nor what is offloaded.
    """
    kept: list[int] = []
    compute = model._say

    def counting(*args: Any, **arguments: Any) -> torch.Tensor:
        sizes: dict[int, int] = {}
        alive = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            place = tensor.untyped_storage().data_ptr()
            weights = {p.untyped_storage().data_ptr() for p in model.engine.module.parameters() if p.numel()}
            if place not in weights:
                sizes[place] = max(sizes.get(place, 0), tensor.numel())
                # else another tensor could take its place
                alive.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            said = compute(*args, **arguments)
        kept.append(sum(sizes.values()))
        return said

    model._say = counting
    return kept


def main(out: Path, rank: int, port: int) -> None:
    """One rank."""
    from trainer.algorithms.config import AlgorithmConfig
    from trainer.learner.collective import gather
    from trainer.learner.config import LearnerConfig
    from trainer.learner.engine import build_critic, build_policy, init_process_group
    from trainer.learner.rank import LearnerRank
    from trainer.learner.weights import full_tensors

    job = json.loads((out / "job.json").read_text())
    ranks = job["ranks"]
    store = torch.distributed.TCPStore("127.0.0.1", port, ranks + 1, False, timedelta(seconds=60))
    init_process_group(store, rank, LearnerConfig(ranks=ranks, timeout=60))
    for variant in job["variants"]:
        config = LearnerConfig(**{"dtype": "float32", "lr": LR, "ranks": ranks} | variant["settings"])
        model, batch = variant["model"] or job["model"], variant["batch"] or job["batch"]
        learner = LearnerRank(rank, config, AlgorithmConfig(**ALGORITHM | variant["algorithm"]))
        learner.adopt(build_policy(model, config))
        if config.critic is not None:
            learner.adopt_critic(build_critic(model, config))
        kept = count_kept(learner._policy) if variant["probed"] else []
        records = []
        for step in range(1, variant["steps"] + 1):
            whole = learner._policy.forward
            if step == variant["spoiled"] and rank == ranks - 1:
                learner._policy.forward = lambda row, t, whole=whole: whole(row, t) * float("inf")
            records.append(learner.update(step, batch, TEMPERATURE).metrics)
            learner._policy.forward = whole
        weights = dict(full_tensors(learner._policy.engine, torch.float32, 2**20))
        found: dict[str, Any] = {"records": records, "weights": weights}
        if variant["probed"]:
            columns = ["old_logprobs", "sum_pi_squared", *(["values"] if config.critic is not None else [])]
            scores = learner.score(batch, columns, TEMPERATURE, variant["steps"])
            found["scores"] = {name: torch.from_numpy(values) for name, values in scores.items()}
            found["kept"] = max(gather(max(kept)))
        if rank == 0:
            torch.save(found, out / f"{variant['name']}.pt")
    # threads of gloo may outlive the interpreter and abort it
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
