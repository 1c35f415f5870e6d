"""Weights put straight to where an engine's kernels have them, by vLLM's own layers and packing on this CPU."""

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainer.serving.buckets import TensorRecord, WeightSyncError, fingerprint
from trainer.serving.names import probe, stale_parameters

WIDTH, ROWS, VOCABULARY, PADDED = 1024, (768, 256, 256), 1100, 1152
CONFIG: Any = SimpleNamespace(parallel_config=SimpleNamespace(tensor_parallel_size=1), lora_config=None)

Named = dict[str, torch.Tensor]


def engine() -> Any:
    """A block of a model whose layers are vLLM's, as they are once an engine has started."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod

    class ParallelLinear(nn.Module):
        def __init__(self, rows: int, bias: bool) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(rows, WIDTH, dtype=torch.bfloat16), requires_grad=False)
            self.bias = nn.Parameter(torch.zeros(rows, dtype=torch.bfloat16), requires_grad=False) if bias else None
            self.input_size_per_partition = WIDTH
            self.quant_method = UnquantizedLinearMethod()

    class VocabEmbedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(PADDED, WIDTH, dtype=torch.bfloat16), requires_grad=False)
            self.quant_method = UnquantizedEmbeddingMethod()

    class Head(ParallelLMHead):
        def __init__(self, table: nn.Parameter) -> None:
            nn.Module.__init__(self)
            self.weight, self.embedding_dim = table, WIDTH
            self.quant_method = UnquantizedEmbeddingMethod()

    class Engine(nn.Module):
        packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}

        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = VocabEmbedding()
            self.qkv_proj = ParallelLinear(sum(ROWS), bias=True)
            # small enough for another kernel than the others
            self.gate = ParallelLinear(64, bias=False)
            self.norm = nn.LayerNorm(WIDTH, bias=False, dtype=torch.bfloat16)
            self.lm_head = Head(self.embed_tokens.weight)
            # shared by layers, but without weights
            self.rope = self.rope_again = nn.Identity()

    from vllm.model_executor.model_loader.reload.layerwise import record_metadata_for_reloading

    made = Engine()
    record_metadata_for_reloading(made)
    return made


def weights(seed: int) -> Named:
    """In the learner's order."""
    torch.manual_seed(seed)
    table = torch.randn(VOCABULARY, WIDTH).bfloat16()
    parts = {f"{name}_proj": rows for name, rows in zip("qkv", ROWS, strict=True)}
    return {
        "embed_tokens.weight": table,
        "lm_head.weight": table,
        **{f"{name}.weight": torch.randn(rows, WIDTH).bfloat16() for name, rows in parts.items()},
        **{f"{name}.bias": torch.randn(rows).bfloat16() for name, rows in parts.items()},
        "gate.weight": torch.randn(64, WIDTH).bfloat16(),
        "norm.weight": torch.randn(WIDTH).bfloat16(),
    }


def load(model: Any, tensors: Named) -> None:
    """As vLLM does when an engine starts."""
    with torch.no_grad():
        model.embed_tokens.weight[:VOCABULARY] = tensors["embed_tokens.weight"]
        model.norm.weight.copy_(tensors["norm.weight"])
        model.gate.weight.copy_(tensors["gate.weight"])
        model.qkv_proj.weight.copy_(torch.cat([tensors[f"{name}_proj.weight"] for name in "qkv"]))
        model.qkv_proj.bias.copy_(torch.cat([tensors[f"{name}_proj.bias"] for name in "qkv"]))
    for module in (model.embed_tokens, model.qkv_proj, model.gate, model.lm_head):
        module.quant_method.process_weights_after_loading(module)


def learn(model: Any, tensors: Named, config: Any = CONFIG) -> Any:
    from trainer.serving.landing import Landings

    return Landings.learn(model, config, [TensorRecord.of(name, tensor) for name, tensor in tensors.items()])


def stale(model: Any, tensors: Named, seed: int) -> list[str]:
    return stale_parameters(model, {name: probe(tensor, seed) for name, tensor in tensors.items()}, seed)


@pytest.fixture
def model() -> Iterator[Any]:
    made = engine()
    load(made, weights(0))
    assert not made.qkv_proj.weight.numel() and not made.gate.weight.numel(), "packed out of sight"
    assert stale(made, weights(0), 1) == []
    yield made


def in_a_buffer(tensors: Named, gap: int) -> Named:
    """The tensors as they lie on their way, tied ones once; with a gap they are not one behind the other."""
    buffer, placed, at = torch.empty(16 * 2**20, dtype=torch.bfloat16), {}, 0
    for name, tensor in tensors.items():
        if name == "lm_head.weight":
            placed[name] = placed["embed_tokens.weight"]
            continue
        placed[name] = buffer[at : at + tensor.numel()].view(tensor.shape).copy_(tensor)
        at += tensor.numel() + gap
    return placed


@pytest.mark.parametrize("gap", [0, 32])
@pytest.mark.parametrize("portions", [1, 4])
def test_all_columns_of_all_tensors_land(model: Any, gap: int, portions: int) -> None:
    landings = learn(model, weights(0))
    for seed in (1, 2):
        new = in_a_buffer(weights(seed), gap)
        items = list(new.items())
        # also in the middle of a layer: what waits has to be kept
        for portion in range(portions):
            part = items[portion * len(items) // portions : (portion + 1) * len(items) // portions]
            landings.land(part)
            for name, tensor in part:
                if name != "embed_tokens.weight" or ("lm_head.weight", new["lm_head.weight"]) in part:
                    tensor.zero_()
        for columns in range(12):
            assert stale(model, weights(seed), columns) == []
        assert stale(model, weights(0), 1) == ["embed_tokens.weight", "qkv_proj.weight", "qkv_proj.bias", "gate.weight",
                                               "norm.weight", "lm_head.weight"]  # fmt: skip


def test_a_layer_of_which_a_part_is_missing_keeps_its_old_values_and_shows(model: Any) -> None:
    landings, new = learn(model, weights(0)), weights(1)
    landings.land([(name, tensor) for name, tensor in new.items() if name != "k_proj.weight"])
    assert stale(model, new, 1) == ["qkv_proj.weight"]


def test_what_does_not_fit_is_refused(model: Any) -> None:
    landings, new = learn(model, weights(0)), weights(1)
    with pytest.raises(WeightSyncError, match="other was sent, but the engine has no place for it"):
        landings.land([("other", new["norm.weight"])])
    with pytest.raises(
        WeightSyncError, match=r"norm\.weight was sent as bfloat16 \[5\], but once as bfloat16 \[1024\]"
    ):
        landings.land([("norm.weight", torch.zeros(5).bfloat16())])
    with pytest.raises(WeightSyncError, match=r"k_proj\.weight was sent as float32"):
        landings.land([("k_proj.weight", new["k_proj.weight"].float())])


@pytest.mark.parametrize("name", ["norm.weight", "embed_tokens.weight", "k_proj.bias"])
def test_nothing_is_learnt_where_something_else_lies_than_was_loaded(model: Any, name: str) -> None:
    other = weights(0)
    other[name] = other[name].roll(1, 0)
    assert learn(model, other) is None


def test_nothing_is_learnt_of_what_is_not_known(model: Any) -> None:
    sharded = SimpleNamespace(parallel_config=SimpleNamespace(tensor_parallel_size=2), lora_config=None)
    assert learn(model, weights(0), sharded) is None
    adapted = SimpleNamespace(parallel_config=CONFIG.parallel_config, lora_config=object())
    assert learn(model, weights(0), adapted) is None
    model.again = model.norm
    assert learn(model, weights(0)) is None
    del model.again
    model.gate.quant_method = SimpleNamespace(apply=model.gate.quant_method.apply)
    assert learn(model, weights(0)) is None


def test_an_embedding_that_is_no_head_has_no_packed_copy_that_could_grow_old(model: Any) -> None:
    landings = learn(model, weights(0))
    landings.land(list(weights(1).items()))
    inputs = torch.randn(2, WIDTH).bfloat16()
    answers = model.embed_tokens.quant_method.apply(model.embed_tokens, inputs)
    expected = inputs @ weights(1)["embed_tokens.weight"].T
    assert torch.allclose(answers[:, :VOCABULARY].float(), expected.float(), rtol=0.05, atol=1)


class Reloads:
    """vLLM's way, counted: everything is loaded when everything has come."""

    def __init__(self, model: Any) -> None:
        self.count, self._model, self._held = 0, model, dict[str, torch.Tensor]()
        # like vLLM's models, which are asked for this by name
        object.__setattr__(model, "load_weights", self._load)

    def begin(self, model: Any) -> None:
        self.count += 1
        self._held = {}

    def _load(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self._held |= {name: tensor.clone() for name, tensor in tensors}

    def end(self, model: Any, config: Any) -> None:
        if self._held.keys() == weights(0).keys():
            for module in (model.qkv_proj, model.gate):
                rows = sum(ROWS) if module is model.qkv_proj else 64
                module.weight = nn.Parameter(torch.zeros(rows, WIDTH, dtype=torch.bfloat16), requires_grad=False)
            load(model, self._held)
        self._held = {}


@pytest.fixture
def worker(model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    from trainer.serving import shm_engine, verified

    reloads = Reloads(model)
    monkeypatch.setattr(shm_engine, "initialize_layerwise_reload", reloads.begin)
    monkeypatch.setattr(shm_engine, "finalize_layerwise_reload", reloads.end)
    monkeypatch.setattr(verified, "finalize_layerwise_reload", reloads.end)
    made = shm_engine.VerifiedShm.__new__(shm_engine.VerifiedShm)
    made.model, made.vllm_config, made.parallel_config = model, CONFIG, CONFIG.parallel_config
    made.model_config, made.device = SimpleNamespace(dtype=torch.bfloat16), torch.device("cpu")
    made.init_transfer_engine(shm_engine.ShmInit())
    return SimpleNamespace(engine=made, reloads=reloads, model=model)


def sync(worker: Any, tensors: Named) -> str:
    """As a learner with a buffer of 4 MiB does it."""
    from trainer.serving.buckets import SharedBuffer, fill_buckets, manifest, record_fields
    from trainer.serving.shm_engine import ShmBucket

    buffer = SharedBuffer(4 * 2**20)

    def send(records: list[TensorRecord]) -> Any:
        worker.engine.receive_weights(ShmBucket(buffer.path, buffer.size, record_fields(records)))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    worker.engine.start_weight_update()
    records = fill_buckets(tensors.items(), buffer, send)
    worker.engine.finish_weight_update()
    buffer.close()
    return str(worker.engine.verified_fingerprint(manifest(records)))


def test_after_one_sync_by_vllms_reload_the_next_ones_land_in_place(worker: Any) -> None:
    for seed in (1, 2, 3):
        tensors = weights(seed)
        assert sync(worker, tensors) == fingerprint(TensorRecord.of(n, t) for n, t in tensors.items())
        assert stale(worker.model, tensors, seed) == []
    assert worker.reloads.count == 1


def test_after_a_sync_in_place_that_failed_vllms_reload_mends_it(worker: Any) -> None:
    sync(worker, weights(1))
    lacking = weights(2)
    del lacking["k_proj.weight"]
    with pytest.raises(WeightSyncError, match=r"missing \['k_proj\.weight'\]"):
        sync(worker, lacking)
    assert worker.reloads.count == 1
    sync(worker, weights(3))
    assert worker.reloads.count == 2
    assert stale(worker.model, weights(3), 1) == []


def test_a_tensor_that_comes_twice_in_place_is_named(worker: Any) -> None:
    sync(worker, weights(1))
    doubled = [*weights(2).items(), ("gate.weight", weights(3)["gate.weight"])]
    with pytest.raises(WeightSyncError, match=r"gate\.weight was sent twice"):
        sync(worker, SimpleNamespace(items=lambda: doubled))  # type: ignore[arg-type]
    with pytest.raises(WeightSyncError, match="not finished"):
        worker.engine.verified_fingerprint({})
    sync(worker, weights(4))
    assert worker.reloads.count == 2 and stale(worker.model, weights(4), 1) == []


def test_memory_that_the_learner_will_write_again_must_not_be_kept(worker: Any) -> None:
    """It holds the right values when the sync ends, and those of the next sync while requests are still served."""
    sync(worker, weights(1))
    land = worker.engine._load

    def keep(model: Any, tensors: list[tuple[str, torch.Tensor]]) -> None:
        land(model, tensors)
        for name, tensor in tensors:
            if name == "norm.weight":
                model.norm.weight.data = tensor

    worker.engine._load = keep
    with pytest.raises(WeightSyncError, match=r"memory of the learner's: \['norm\.weight'\]"):
        sync(worker, weights(2))
