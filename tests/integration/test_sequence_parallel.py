"""Rows over two ranks: the same training as without, for less memory a rank.

Dense models against plain PyTorch, mixtures with replayed routing and a critic against ranks that compute whole rows.
`TESTGRAD_ALL_LEARNER=1` runs them, on two ranks and on four, by twos and all together.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.exact import Variant, run_ranks, train_plainly
from support.mixture import CHOSEN, EXPERTS, LAYERS, tiny_mixture
from support.plain import load_plain
from support.rollouts import batch_of, make_rollout, write_batch

from trainer.batch import read_train_batch, sampled_lengths, with_advantages
from trainer.learner.samples import read_samples

ALL = bool(os.environ.get("TESTGRAD_ALL_LEARNER"))
pytestmark = pytest.mark.skipif(not ALL, reason="TESTGRAD_ALL_LEARNER=1 runs it")
CHECKPOINTED = {"gradient_checkpointing": True, "offload_activations": True}
PLAIN = [
    Variant("checkpointed", {"sp_size": 2, "share_prompts": "never", "micro_batch_tokens": 100} | CHECKPOINTED, 5),
    Variant("shared", {"sp_size": 2, "share_prompts": "always"}, 5),
]
IF_ALL = [
    Variant("packed", {"sp_size": 2, "share_prompts": "never"}, 5),
    *(Variant(f"stage {stage}", {"sp_size": 2, "zero_stage": stage}, 5) for stage in (0, 1, 2)),
]
BY_FOUR = Variant("shared by four", {"sp_size": 4, "share_prompts": "always"}, 5)
OVER_SEQUENCES = {
    "policy_loss": "gspo",
    "loss_agg": "seq-mean-token-mean",
    "kl": {"place": "loss", "coef": 0.1},
    "rollout_correction": {"mode": "decoupled"},
}
RANKS = (2, 4) if ALL else (2,)
CASES = [(ranks, variant) for ranks in RANKS for variant in (PLAIN + IF_ALL if ALL else PLAIN)]
CASES += [(4, BY_FOUR)] if ALL else []


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifteen rollouts, whose lengths divide by no number of ranks."""
    return write_batch(tmp_path_factory.mktemp("batch") / "batch.parquet", groups=3, attempts=5)


@pytest.fixture(scope="module")
def trained(
    models: dict[str, Path], batch: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, dict[str, Any]]:
    """What so many ranks made of each variant."""
    folder = tmp_path_factory.mktemp("parallel")
    mixture = tiny_mixture(folder / "mixture", num_attention_heads=4, num_key_value_heads=2)
    other: dict[str, Any] = {"model": str(mixture), "batch": str(routed_batch(folder / "routed.parquet"))}
    other |= {"algorithm": OVER_SEQUENCES, "probed": True}
    # two optimizer steps: in the second one ratios are not 1
    # a prompt that is shared follows the record of one rollout, and here each has its own
    settings = {"moe": {"replay": True}, "critic": {}, "mini_batch_size": 4, "share_prompts": "never"}
    routed = [Variant(f"mixture over {n}", {"sp_size": n} | settings, 1, **other) for n in (1, 2)]
    few = str(write_batch(folder / "few.parquet", groups=1, attempts=2))

    def variants(ranks: int) -> list[Variant]:
        sizes = [n for n in (1, 2, 4) if n <= ranks]
        kept = [
            Variant(f"rollout over {n}", {"sp_size": n, "micro_batch_tokens": 1}, 1, batch=few, probed=True)
            for n in sizes
        ]
        return [*kept, *routed, *(variant for count, variant in CASES if count == ranks)]

    return {ranks: run_ranks(folder, models["untied"], batch, ranks, variants(ranks)) for ranks in RANKS}


def routed_batch(path: Path) -> Path:
    """Rollouts with experts that were drawn by lot, a reference's log-probs, values and returns."""
    rng = np.random.default_rng(0)
    rollouts = []
    for group in range(2):
        prompt = rng.integers(0, 256, 13 + 6 * group).tolist()
        for number in range(3):
            answer = rng.integers(0, 256, int(rng.integers(1, 40))).tolist()
            tokens = len(prompt) + len(answer) - 1
            experts = rng.random((tokens, LAYERS, EXPERTS)).argsort(-1)[..., :CHOSEN].astype("<i2")
            told = {"routed_experts": experts.tobytes(), "routing_shape": list(experts.shape)}
            logprobs = [float("nan")] * len(prompt) + rng.normal(-5.5, 0.3, len(answer)).tolist()
            rollouts.append(
                make_rollout(f"s{group}-{number}", f"g{group}", prompt, [answer], logprobs=logprobs, **told)
            )
    table = batch_of(rollouts)
    signs = np.repeat([2 * reward - 1 for reward in table.column("reward").to_pylist()], sampled_lengths(table))
    columns = {name: rng.normal(size=len(signs)) for name in ("values", "returns")}
    pq.write_table(with_advantages(table, signs, ref_logprobs=rng.normal(-5.5, 0.1, len(signs)), **columns), path)
    return path


@pytest.mark.parametrize(("ranks", "variant"), CASES, ids=[f"{variant.name}-{ranks}" for ranks, variant in CASES])
def test_the_same_as_plain_training(
    trained: dict[int, dict[str, Any]], models: dict[str, Path], batch: Path, ranks: int, variant: Variant
) -> None:
    model = load_plain(models["untied"])
    want = train_plainly(model, read_samples(read_train_batch(batch)), variant.steps)
    have = trained[ranks][variant.name]
    for step, (mine, plain) in enumerate(zip(have["records"], want, strict=True), 1):
        for name, value in plain.items():
            assert mine[name] == pytest.approx(value, rel=1e-6), (step, name)
    for name, parameter in model.named_parameters():
        difference = (have["weights"][name] - parameter.detach()).norm() / parameter.detach().norm()
        assert float(difference) <= 1e-6, name


@pytest.mark.parametrize("ranks", RANKS)
def test_mixtures_and_critics_as_over_whole_rows(trained: dict[int, dict[str, Any]], ranks: int) -> None:
    """All metrics too: what ranks of a group compute alike is counted once."""
    want, have = (trained[ranks][f"mixture over {n}"] for n in (1, 2))
    for mine, plain in zip(have["records"], want["records"], strict=True):
        assert mine.keys() == plain.keys()
        assert plain["actor/routing_replay/coverage"] == 1.0 and plain["critic/grad_norm"] > 0
        for name in plain.keys() - {"perf/tflops/actor", "perf/tokens_per_second/actor"}:
            if not name.startswith(("global_seqlen/", "perf/", "timing_s/")):
                assert mine[name] == pytest.approx(plain[name], rel=1e-5, abs=1e-6), name
    for name, weight in want["weights"].items():
        assert float((have["weights"][name] - weight).norm() / weight.norm()) <= 1e-6, name
    assert want["scores"].keys() == {"old_logprobs", "sum_pi_squared", "values"}
    for name, scores in want["scores"].items():
        assert have["scores"][name].tolist() == pytest.approx(scores.tolist(), rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("ranks", RANKS)
def test_a_rollout_takes_its_share_of_memory(trained: dict[int, dict[str, Any]], ranks: int) -> None:
    """Numbers that the rank with the most of them keeps for the backward pass of a row of the longest rollout."""
    kept = {n: trained[ranks][f"rollout over {n}"]["kept"] for n in (1, 2, 4) if n <= ranks}
    assert kept[2] < 0.55 * kept[1]
    if ranks == 4:
        assert kept[4] < 0.32 * kept[1], "somewhat more than a quarter, since its two heads of keys are repeated"
