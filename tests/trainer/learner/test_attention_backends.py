"""The kernels that GPUs use see what the definition says, as far as CPUs can tell."""

import importlib.metadata
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from support.plain import load_plain, plain_logprobs, samples_like, sharpen
from support.tiny import tiny_model
from torch.nn.attention.flex_attention import create_block_mask

from trainer.learner import attention_backends, attention_flash, attention_flex
from trainer.learner.attention import packed_attention, visible
from trainer.learner.attention_backends import BACKENDS, backend_for
from trainer.learner.config import LearnerConfig
from trainer.learner.logprobs import LogProbHead
from trainer.learner.packing import Span, pack_rows

CPU = torch.device("cpu")
ROWS = {
    "shared": pack_rows(samples_like([(17, 3), (9, 1), (6, 2)]), 2048)[0].spans,
    "alone": pack_rows(samples_like([(17, 3), (9, 1)]), 2048, "never")[0].spans,
    "many blocks": (Span(0, 150, 0, 0), Span(150, 300, 0, 150), Span(300, 350, 0, 150), Span(350, 400, 350, 350)),
}


@pytest.fixture(params=ROWS.values(), ids=list(ROWS))
def spans(request):
    return request.param


@pytest.fixture
def states(spans):
    torch.manual_seed(0)
    tokens = spans[-1].end
    return torch.randn(1, 4, tokens, 16), torch.randn(1, 2, tokens, 16), torch.randn(1, 2, tokens, 16)


def reference(states, spans):
    query, key, value = states
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=visible(spans), scale=0.3, enable_gqa=True)
    return out.transpose(1, 2)


def test_sdpa_is_the_definition(spans, states):
    out, _ = packed_attention(torch.nn.Module(), *states, None, scaling=0.3, spans=spans)
    torch.testing.assert_close(out, reference(states, spans))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_is_the_definition(spans, states):
    arguments = attention_flex.arguments(spans, CPU)
    out, _ = attention_flex.flex(torch.nn.Module(), *states, None, scaling=0.3, **arguments)
    torch.testing.assert_close(out, reference(states, spans))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return sharpen(tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kind", BACKENDS)
def test_a_model_computes_with_each(kind, folder, monkeypatch):
    """By its name in transformers too, which has ways of its own with some names."""
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(attention_flash, "varlen_kernel", sequences)
    monkeypatch.setattr(attention_backends, "has_flash", lambda: True)
    backend = backend_for(LearnerConfig(gpus_per_rank=1, attention=kind))
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=backend.name)
    model.lm_head = LogProbHead(model.lm_head, 5)
    samples = samples_like([(17, 3), (9, 1)])
    (row,) = pack_rows(samples, 2048)
    model.lm_head.aim(row.target_ids, 0.8)
    with torch.no_grad():
        said = model(
            input_ids=row.token_ids,
            position_ids=row.position_ids,
            logits_to_keep=row.hidden_index,
            use_cache=False,
            **backend.arguments(row.spans, CPU),
        ).logits[0, :, 0]
        for place, sample in enumerate(row.samples):
            want = plain_logprobs(load_plain(folder), sample, 0.8)
            torch.testing.assert_close(said[row.sample_index == place], want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", BACKENDS)
def test_ranks_that_share_rows_load_a_model_with_each(kind, folder, monkeypatch):
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(attention_backends, "has_flash", lambda: True)
    backend = backend_for(LearnerConfig(gpus_per_rank=1, attention=kind, ranks=2, sp_size=2))
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=backend.name)
    assert model.config._attn_implementation == backend.name


def test_blocks_are_those_that_torch_makes_of_the_whole_mask(spans):
    whole = torch.zeros(spans[-1].end, spans[-1].end, dtype=torch.bool) | visible(spans)
    want = create_block_mask(lambda b, h, q, k: whole[q, k], None, None, *whole.shape, device="cpu")
    have = attention_flex.block_mask(spans, CPU)
    assert have.seq_lengths == want.seq_lengths and have.BLOCK_SIZE == want.BLOCK_SIZE
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices"):
        assert torch.equal(getattr(have, name), getattr(want, name)), name


def test_blocks_of_long_rows_are_counted_part_by_part(monkeypatch):
    want = attention_flex.block_mask(ROWS["many blocks"], CPU)
    monkeypatch.setattr(attention_flex, "_CHUNK", 1)
    assert torch.equal(attention_flex.block_mask(ROWS["many blocks"], CPU).to_dense(), want.to_dense())


def test_short_rows_get_the_kernel_of_long_ones(monkeypatch):
    """The other one is not to be had for 4 or 8 heads that share keys."""
    asked = {}
    monkeypatch.setattr(attention_flex, "_kernel", lambda compiled: lambda q, k, v, **a: asked.update(a) or q)
    states = torch.zeros(1, 1, 33, 16)
    attention_flex.flex(
        torch.nn.Module(), *(states,) * 3, None, block_mask=attention_flex.block_mask(ROWS["alone"], CPU)
    )
    assert asked["kernel_options"] == {"FORCE_USE_FLEX_ATTENTION": True}


def test_flex_skips_blocks_that_nobody_sees():
    mask = attention_flex.block_mask(ROWS["many blocks"], CPU)
    blocks = mask.to_dense()[0, 0].bool()
    full = torch.zeros(512, 512, dtype=torch.bool)
    full[:400, :400] = visible(ROWS["many blocks"])
    seen = full.view(4, 128, 4, 128).any(3).any(1)
    assert torch.equal(blocks, seen) and not seen.all()


def sequences(query, key, value, layout, scaling, dropout):
    """What flash attention's kernel is documented to compute, one sequence at a time."""
    outputs = []
    for s in range(len(layout.query_ends) - 1):
        q = query[layout.query_ends[s] : layout.query_ends[s + 1]].transpose(0, 1)
        k, v = (x[layout.key_ends[s] : layout.key_ends[s + 1]].transpose(0, 1) for x in (key, value))
        # causal=True aligns the mask at the bottom right
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        out = F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=mask, scale=scaling, dropout_p=dropout, enable_gqa=True
        )
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


def test_flash_is_given_what_the_definition_says(spans, states, monkeypatch):
    monkeypatch.setattr(attention_flash, "varlen_kernel", sequences)
    arguments = attention_flash.arguments(spans, CPU)
    out, _ = attention_flash.flash_attention(torch.nn.Module(), *states, None, scaling=0.3, **arguments)
    torch.testing.assert_close(out, reference(states, spans))
    layout = arguments["layout"]
    assert layout.longest_keys == max(layout.key_ends.diff()) and layout.longest_query == max(layout.query_ends.diff())


@pytest.mark.parametrize("kind", BACKENDS)
def test_what_is_not_computed_is_refused(kind, states, spans):
    attend = attention_backends._FUNCTIONS[kind]
    with pytest.raises(ValueError, match=r"must be called with|call the model with"):
        attend(torch.nn.Module(), *states, None)
    for more, message in (
        ({"sliding_window": 3}, "sliding window"),
        ({"softcap": 50.0}, "this model's attention has softcap"),
        ({"s_aux": torch.zeros(4)}, "this model's attention has s_aux"),
    ):
        with pytest.raises(ValueError, match=message):
            attend(torch.nn.Module(), *states, None, **more, **BACKENDS[kind].arguments(spans, CPU))


def test_the_device_decides(monkeypatch):
    found = {}

    def version(name):
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    gpu = LearnerConfig(gpus_per_rank=1)
    assert backend_for(LearnerConfig(matmul_dtype="bfloat16")) is BACKENDS["sdpa"]
    assert backend_for(LearnerConfig(matmul_dtype="float32")).name == f"{BACKENDS['sdpa'].name}_in_fp32"
    assert backend_for(LearnerConfig(dtype="float32")) is BACKENDS["sdpa"]
    assert backend_for(gpu) is BACKENDS["flex"]
    with pytest.raises(ValueError, match="not installed; install it, or take attention: flex"):
        backend_for(gpu.model_copy(update={"attention": "flash"}))
    found["flash-attn-4"] = "4.0"  # which has modules of the same name, and another function
    assert backend_for(gpu) is BACKENDS["flex"]
    found["flash-attn"] = "2.8.3"
    assert backend_for(gpu) is BACKENDS["flash"]
    assert backend_for(gpu.model_copy(update={"dtype": "float32"})) is BACKENDS["flex"]


def test_flash_attention_is_told_to_add_up_in_one_order(monkeypatch):
    """Its backward pass gives other gradients each time otherwise, and no replay could be checked."""
    asked = {}
    kernel = SimpleNamespace(flash_attn_varlen_func=lambda *tensors, **arguments: asked.update(arguments) or tensors[0])
    monkeypatch.setitem(sys.modules, "flash_attn", kernel)
    query = torch.zeros(3, 1, 4)
    layout = attention_flash.layout_of([Span(0, 3, 0, 0)], CPU)
    attention_flash.varlen_kernel(query, query, query, layout, None, 0.0)
    assert asked["deterministic"] is True and asked["causal"] is True
