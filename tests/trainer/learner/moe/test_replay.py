"""Replay of recorded routing: it changes nothing where nothing changed, and undoes what a changed router does."""

import dataclasses

import numpy as np
import pytest
import torch
from support.mixture import CHOSEN, EXPERTS, FAMILIES, LAYERS, disturb_routers, record_routing, tiny_mixture
from support.plain import assert_same_gradients, gradients, load_packed, load_plain, plain_logprobs, samples_like
from support.tiny import tiny_model

from trainer.learner.moe.mixtures import MixtureError
from trainer.learner.moe.replay import ReplayError, RoutingReplay, require_records, routing_metrics
from trainer.learner.packing import dummy_row, pack_rows

SAMPLES = samples_like([(17, 3), (9, 2)])


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    return tiny_mixture(tmp_path_factory.mktemp("mixture") / request.param, request.param)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return tiny_mixture(tmp_path_factory.mktemp("mixture") / "qwen3_moe")


def recorded(folder, samples=SAMPLES):
    """The samples, with the experts that the model chooses for each alone."""
    engine = load_plain(folder)
    return [dataclasses.replace(s, experts=record_routing(engine, s.token_ids)) for s in samples]


def forward(model, rows, replay=None, backward=False):
    """Log-probs of all rows, and gradients of their sum if asked for."""
    logprobs = []
    model.zero_grad()
    for row in rows:
        if replay is not None:
            replay.aim(row)
        model.lm_head.aim(row.target_ids, 1.0)
        inputs = {"input_ids": row.token_ids, "position_ids": row.position_ids, "logits_to_keep": row.hidden_index}
        output = model(**inputs, spans=row.spans, use_cache=False).logits[0, :, 0]
        if backward:
            output.sum().backward()
        logprobs.append(output.detach())
    return torch.cat(logprobs)


def pearson(left, right):
    """Of probabilities, as the run reports it."""
    return float(np.corrcoef(left.exp().numpy(), right.exp().numpy())[0, 1])


def test_the_choice_it_would_make_itself_changes_nothing(folder):
    """Neither log-probs nor gradients, in packed rows with a shared prefix too."""
    rows = pack_rows(recorded(folder), 2048)
    free = load_packed(folder)
    want, plain = forward(free, rows, backward=True), gradients(free)
    model = load_packed(folder)
    replay = RoutingReplay(model)
    have = forward(model, rows, replay, backward=True)
    torch.testing.assert_close(have, want, atol=1e-5, rtol=0)
    assert_same_gradients(gradients(model), plain, 1e-4)
    needed, replayed, changed = replay.counts()
    assert (needed, replayed) == ((sum(row.tokens for row in rows) - len(SAMPLES)) * LAYERS,) * 2
    assert changed <= 2, "only rounding between a sequence alone and a packed row may change a choice"


def test_replay_restores_what_a_changed_router_destroyed(folder):
    samples = recorded(folder)
    rows = pack_rows(samples, 2048)
    engine = load_plain(folder)
    sampled = torch.cat([plain_logprobs(engine, s, 1.0).detach() for row in rows for s in row.samples])
    trainer = load_packed(folder)
    disturb_routers(trainer)
    assert pearson(forward(trainer, rows), sampled) < 0.9
    replay = RoutingReplay(trainer)
    assert pearson(forward(trainer, rows, replay), sampled) > 0.999
    needed, replayed, changed = replay.counts()
    assert needed == replayed and changed > replayed / 4
    metrics = routing_metrics(replay)
    assert metrics["actor/routing_replay/coverage"] == 1.0 and 0.25 < metrics["actor/routing_replay/changed"] < 1


def test_the_router_learns_while_its_choice_is_forced(folder):
    """Its gradient is the slope of the loss: gates are live."""
    rows = pack_rows(recorded(folder, SAMPLES[:2]), 2048)
    model = load_packed(folder).double()
    model.set_experts_implementation("eager")  # the others do not know this type
    disturb_routers(model)
    replay = RoutingReplay(model)
    forward(model, rows, replay, backward=True)
    router = next(p for name, p in model.named_parameters() if name.endswith("layers.0.mlp.gate.weight"))
    place = divmod(int(router.grad.abs().argmax()), router.shape[1])
    analytic, sums = float(router.grad[place]), []
    for step in (1e-3, -1e-3):
        with torch.no_grad():
            router[place] += step
        sums.append(float(forward(model, rows, replay).double().sum()))
        with torch.no_grad():
            router[place] -= step
    assert abs(analytic) > 1e-3
    assert (sums[0] - sums[1]) / 2e-3 == pytest.approx(analytic, rel=2e-2)


def test_tokens_without_a_record_are_routed_by_the_router(qwen):
    """Records of nobody, of one rollout, and of no layer: zeros are how an engine says that it does not know."""
    model = load_packed(qwen)
    disturb_routers(model)
    rows = pack_rows(SAMPLES, 2048)
    want = forward(model, rows)
    replay = RoutingReplay(model)
    assert torch.equal(forward(model, rows, replay), want)
    assert replay.counts()[1] == 0
    unknown = [dataclasses.replace(s, experts=np.zeros((len(s.token_ids) - 1, LAYERS, CHOSEN), "<i2")) for s in SAMPLES]
    assert torch.equal(forward(model, pack_rows(unknown, 2048), replay), want)
    assert replay.counts()[1] == 0
    with pytest.raises(ReplayError, match=r"none of the 5 rollouts of this batch.*set serving.capture_routing: true"):
        require_records(unknown)
    known = recorded(qwen)
    require_records([unknown[0], known[1]])
    replay.forget()
    forward(model, pack_rows([*unknown[:4], known[4]], 1), replay)
    assert replay.counts()[1] == (len(known[4].token_ids) - 1) * LAYERS


def test_gradient_checkpointing_replays_the_same_choice(qwen):
    rows = pack_rows(recorded(qwen), 2048)
    results = []
    for checkpointing in (False, True):
        model = load_packed(qwen)
        disturb_routers(model)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        forward(model, rows, RoutingReplay(model), backward=True)
        results.append(gradients(model))
    assert_same_gradients(results[1], results[0], 1e-6)


def test_a_row_that_trains_nothing_needs_no_record(qwen):
    model = load_packed(qwen)
    replay = RoutingReplay(model)
    forward(model, [dummy_row(recorded(qwen, SAMPLES[:1])[0])], replay)
    assert replay.counts() == (0, 0, 0)


@pytest.mark.parametrize(
    ("shape", "largest", "message"),
    [
        ((LAYERS + 1, CHOSEN), 1, "routing of 3 layers"),
        ((LAYERS, CHOSEN + 1), 2, "3 experts a token"),
        ((LAYERS, CHOSEN), EXPERTS, "ids up to 8 was recorded, but the model has 2 layers and chooses 2 of 8"),
    ],
)
def test_a_record_of_another_model_is_refused(qwen, shape, largest, message):
    sample = SAMPLES[0]
    experts = np.zeros((len(sample.token_ids) - 1, *shape), "<i2") + np.arange(shape[1], dtype="<i2")
    experts[0, 0, -1] = largest
    (row,) = pack_rows([dataclasses.replace(sample, experts=experts)], 2048)
    with pytest.raises(ReplayError, match=message):
        RoutingReplay(load_packed(qwen)).aim(row)


def test_a_part_of_a_sequence_is_refused(qwen):
    model = load_packed(qwen)
    replay = RoutingReplay(model)
    first, second = pack_rows(recorded(qwen), 1)[:2]
    replay.aim(first)
    with pytest.raises(ReplayError, match=r"sees \d+ tokens of a row of \d+"):
        forward(model, [second])


def test_a_dense_model_is_refused(tmp_path):
    model = load_packed(tiny_model(tmp_path / "dense"))
    with pytest.raises(MixtureError, match=r"type 'qwen3' has no routers known here.*learner.moe.replay: false"):
        RoutingReplay(model)
