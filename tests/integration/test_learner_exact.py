"""ZeRO on one and two ranks against plain PyTorch: the same losses and weights, however the batch is computed.

A few variants on each number of ranks; `TESTGRAD_ALL_LEARNER=1` runs them all on both.
"""

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from support.exact import LR, Variant, run_ranks, train_plainly
from support.plain import load_plain
from support.rollouts import write_batch

from trainer.batch import read_train_batch
from trainer.learner.freeze import freeze
from trainer.learner.samples import read_samples

ALL = bool(os.environ.get("TESTGRAD_ALL_LEARNER"))
VARIANTS = [
    Variant("alone", {"micro_batch_tokens": 1, "share_prompts": "never"}, ranks=()),
    Variant("packed", {"share_prompts": "never"}, ranks=(1,)),
    Variant("accumulated and balanced", {"micro_batch_tokens": 200, "share_prompts": "never"}, ranks=(2,)),
    Variant("shared", {"share_prompts": "always"}),
    Variant("checkpointed", {"gradient_checkpointing": True, "offload_activations": True}, ranks=()),
    Variant("offloaded", {"offload_optimizer": True}, steps=5, ranks=()),
    Variant("frozen", {"freeze": ["embed_tokens", r"layers\.0\."]}, steps=5, ranks=()),
    *(Variant(f"stage {stage}", {"zero_stage": stage}, steps=5, ranks=()) for stage in (0, 1, 2)),
    *(Variant(f"spoiled {stage}", {"zero_stage": stage}, steps=4, spoiled=2, ranks=()) for stage in (0, 1, 2)),
    Variant("spoiled 3", {"zero_stage": 3}, steps=4, spoiled=2, ranks=(2,)),
]
CASES = [(ranks, variant) for ranks in (1, 2) for variant in VARIANTS if ALL or ranks in variant.ranks]


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifteen rollouts, which do not divide by two."""
    return write_batch(tmp_path_factory.mktemp("batch") / "batch.parquet", groups=3, attempts=5)


@pytest.fixture(scope="module")
def trained(
    models: dict[str, Path], batch: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, dict[str, Any]]:
    """What so many ranks made of each variant. That they end says that no uneven count of tokens makes them wait."""
    folder = tmp_path_factory.mktemp("exact")
    return {
        ranks: run_ranks(folder, models["untied"], batch, ranks, [variant for n, variant in CASES if n == ranks])
        for ranks in (1, 2)
    }


@pytest.mark.parametrize(("ranks", "variant"), CASES, ids=[f"{variant.name}-{ranks}" for ranks, variant in CASES])
def test_same_losses_and_weights(
    trained: dict[int, dict[str, Any]], models: dict[str, Path], batch: Path, ranks: int, variant: Variant
) -> None:
    model = load_plain(models["untied"])
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    freeze(model, variant.settings.get("freeze", []))
    samples = read_samples(read_train_batch(batch))
    want = train_plainly(model, samples, variant.steps, skip=variant.spoiled)
    have = trained[ranks][variant.name]
    for step, (mine, plain) in enumerate(zip(have["records"], want, strict=True), 1):
        assert mine["actor/lr"] == LR
        assert mine["actor/skipped_steps"] == float(step == variant.spoiled)
        for name, value in plain.items():
            assert mine[name] == pytest.approx(value, rel=1e-6), (step, name)
    for name, parameter in model.named_parameters():
        weight = have["weights"][name]
        assert float((weight - parameter.detach()).norm() / parameter.detach().norm()) <= 1e-6, name
        assert torch.equal(weight, before[name]) != parameter.requires_grad, f"{name} moved, or did not"


def test_the_batch_is_uneven(batch: Path) -> None:
    lengths = [len(row["token_ids"]) for row in pq.read_table(batch).to_pylist()]
    assert len(lengths) % 2 and max(lengths) > 2 * min(lengths)
