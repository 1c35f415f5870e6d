"""The kernels that GPUs use see what the definition says, as far as CPUs can tell."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from support.plain import samples_like

from trainer.learner import attention_flash, attention_flex
from trainer.learner.attention import packed_attention, visible
from trainer.learner.attention_backends import BACKENDS, backend_for
from trainer.learner.config import LearnerConfig
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


@pytest.mark.parametrize("kind", ["flex", "flash"])
def test_a_sliding_window_and_a_missing_row_are_refused(kind, states, spans):
    attend = {"flex": attention_flex.flex, "flash": attention_flash.flash_attention}[kind]
    with pytest.raises(ValueError, match="must be called with"):
        attend(torch.nn.Module(), *states, None)
    with pytest.raises(ValueError, match="sliding window"):
        attend(torch.nn.Module(), *states, None, sliding_window=3, **BACKENDS[kind].arguments(spans, CPU))


def test_the_device_decides(monkeypatch):
    found = {}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found.get(name))
    gpu = LearnerConfig(gpus_per_rank=1)
    assert backend_for(LearnerConfig()) is BACKENDS["sdpa"]
    assert backend_for(gpu) is BACKENDS["flex"]
    with pytest.raises(ValueError, match="not installed; install it, or take attention: flex"):
        backend_for(gpu.model_copy(update={"attention": "flash"}))
    found["flash_attn"] = object()
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
