"""Memory of learner and replicas, and disk for checkpoints: estimates, with their arithmetic in sight."""

from collections.abc import Iterator
from dataclasses import dataclass

from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, fatal, ok, unset, warn
from flows.preflight.machine import GIB, disk_free, gib
from flows.preflight.model_facts import ModelFacts
from flows.preflight.of_model import of_model
from flows.preflight.registry import check
from trainer.learner.config import LearnerConfig
from trainer.learner.products import in_fp32

_BYTES = {"bfloat16": 2, "float32": 4}
_ADAM = 8
"""Bytes a parameter: two moments in float32."""
_MASTER = 4
_STEP = 4
"""Bytes a parameter: ZeRO-3's float32 copy of the gradient at the optimizer's step."""
_ENGINE = 2 * GIB
"""What an engine takes besides weights and cache: workspaces, graphs, the runtime."""
_COPIES = 8
"""Float32 arrays as large as a chunk of logits that exist at once, forward and backward."""
_PER_HIDDEN, _PER_INNER = 30, 9
"""Numbers a token that a layer keeps for its backward pass, by its two widths; measured, see `learner_memory`."""
_HELD = 8
"""Times what one layer keeps: copies in float32 that come and go, and of which the allocator keeps hold; measured."""
_TOKEN_BYTES = 40
"""What the journal keeps of a token: ids, mask, log-prob, version, and the text of the conversation."""


@dataclass(frozen=True)
class Estimate:
    """Bytes, and how they came about. `least` is the part of `total` that no way of computing does without."""

    total: float
    least: float
    arithmetic: str


def learner_memory(facts: Facts, model: ModelFacts) -> Estimate:
    """Peak of one rank: states sharded over all ranks, activations of one row, logits of one chunk.

    For a model of SmolLM2-135M's shapes on a CPU that multiplies in float32, one rank: 5.7 GiB for rows of 1000 tokens
    (measured: 6.0), 7.9 for 2000 (8.4), and 4.6 with activations recomputed (6.0 to 6.2).
    """
    learner, algorithm = facts.config.learner, facts.config.algorithm
    size = _BYTES[learner.dtype]
    parameters, ranks, models = model.parameters, learner.ranks, 2 if learner.critic is not None else 1
    states, arithmetic = _states(learner, model, models)
    shared = ranks if learner.zero_stage == 3 else 1
    # with adapters the reference is the policy without them
    copied = algorithm.kl.place != "none" and learner.lora is None
    frozen = size * parameters / shared if copied else 0.0
    # ZeRO-3 gathers a layer at a time, and the next one ahead
    gathered = 2 * size * max(model.largest_tensor, parameters // max(model.number("num_hidden_layers", 1) or 1, 1))
    # of a row, which may be one rollout, each rank of its group has a part
    tokens = max(learner.micro_batch_tokens, -(-facts.config.serving.window // learner.sp_size))
    hidden, inner = model.number("hidden_size", 0) or 0, model.number("intermediate_size", 0) or 0
    layers = model.number("num_hidden_layers", 0) or 0
    one_layer = tokens * (_PER_HIDDEN * hidden + _PER_INNER * inner) * size
    offloaded = learner.offload_activations and learner.gpus_per_rank
    saved = 0 if offloaded else tokens * hidden * size * layers
    kept = saved + one_layer if learner.gradient_checkpointing else one_layer * layers
    logits = _COPIES * 4 * learner.logprob_chunk * (model.number("vocab_size", 0) or 0)
    held = _HELD * one_layer if in_fp32(learner) else 0
    parts = [f"{arithmetic} = {gib(states)} of states"]
    if frozen:
        parts.append(f"{gib(frozen)} of reference")
    how = "recomputed in the backward pass" if learner.gradient_checkpointing else "all kept"
    how += ", saved in host memory" if offloaded else ""
    parts += [
        f"{gib(gathered)} gathered",
        f"{tokens} tokens x {layers} layers, {how} = {gib(kept)} of activations",
        f"{learner.logprob_chunk} x {model.number('vocab_size', 0)} logits = {gib(logits)}",
    ]
    if held:
        parts.append(f"{gib(held)} of copies in float32")
    total = states + frozen + gathered + kept + logits + held
    return Estimate(total, states + frozen, f"{' + '.join(parts)} = {gib(total)} a rank")


def _states(learner: LearnerConfig, model: ModelFacts, models: int) -> tuple[float, str]:
    """Bytes of weights, gradients and optimizer on one rank's device, and how they came about.

    ZeRO's stage says which of them ranks share out: 1 the optimizer's, 2 gradients too, 3 weights too. With adapters
    only those have gradients and an optimizer; an optimizer in host memory takes none of the device's.
    """
    size = _BYTES[learner.dtype]
    on_host = learner.offload_optimizer and learner.gpus_per_rank
    optimizer = 0 if on_host else optimizer_bytes(learner)
    shares = [learner.ranks if learner.zero_stage >= least else 1 for least in (3, 2, 1)]
    trained = model.parameters if learner.lora is None else _adapters(learner.lora.rank, model)
    gradient = gradient_bytes(learner)
    parts = (size * model.parameters, gradient * trained, optimizer * trained)
    states = models * sum(part / share for part, share in zip(parts, shares, strict=True))
    if len(set(shares)) == 1 and learner.lora is None:
        sum_ = f"{size + gradient + optimizer} B x {model.parameters / 1e6:,.0f} M / {shares[0]} ranks"
        return states, f"{models} x {sum_}"
    named = (
        f"{value} B x {count / 1e6:,.0f} M / {share} ({name})"
        for value, count, share, name in zip(
            (size, gradient, optimizer), (model.parameters, trained, trained), shares,
            ("weights", "gradients", "optimizer"), strict=True,
        )
    )  # fmt: skip
    return states, f"{models} x ({' + '.join(named)})"


def gradient_bytes(learner: LearnerConfig) -> int:
    """Bytes a trained parameter: a row's gradient, and in bfloat16 the sum of rows in fp32 beside it, if ZeRO keeps one
    (see `trainer.learner.deepspeed_config`).
    """
    own = _BYTES[learner.dtype]
    return own + 4 if own < 4 and learner.zero_stage >= 2 else own


def optimizer_bytes(learner: LearnerConfig) -> int:
    """Bytes a trained parameter of the optimizer: moments, master weights, and the step's copy of the gradient."""
    return _STEP + _ADAM + (_MASTER if _BYTES[learner.dtype] < 4 else 0)


def _adapters(rank: int, model: ModelFacts) -> int:
    """About how many parameters adapters of all linear layers have: seven a layer, two matrices each."""
    hidden, inner = model.number("hidden_size", 0) or 0, model.number("intermediate_size", 0) or 0
    return (model.number("num_hidden_layers", 0) or 0) * rank * (8 * hidden + 3 * (hidden + inner))


def kv_bytes(facts: Facts, model: ModelFacts) -> int:
    """Bytes of the cache for one token, on all devices of a replica together."""
    layers, heads, width = model.number("num_hidden_layers", 0), model.kv_heads, model.head_dim
    return 2 * (layers or 0) * (heads or 0) * (width or 0) * _BYTES[facts.config.serving.dtype]


@check("learner-memory")
@of_model
def learner_fits(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    """The learner's states, activations and logits fit its devices."""
    learner, machine = facts.config.learner, facts.machine
    estimate = learner_memory(facts, model)
    if not facts.is_set("learner.micro_batch_tokens"):
        yield unset(
            "learner.micro_batch_tokens",
            learner.micro_batch_tokens,
            "bounds the memory of activations, and speed",
            "set it to what fits",
        )
    if facts.config.serving.window > learner.row_tokens:
        yield warn(
            "learner.micro_batch_tokens",
            learner.micro_batch_tokens,
            f"{_over(learner)}is less than serving.window of "
            f"{facts.config.serving.window}: a longer rollout makes a row of its own, which takes more memory than "
            "this",
            "raise it to the window, so that the estimate is the bound",
        )
    if not learner.gpus_per_rank:
        yield ok("learner.ranks", learner.ranks, estimate.arithmetic)
        return
    if not machine.gpus:
        yield warn(
            "learner.ranks",
            learner.ranks,
            f"{estimate.arithmetic}; there is no GPU here to compare with",
            "compare with those of the cluster",
        )
        return
    memory = min(gpu.memory for gpu in machine.gpus)
    yield _judged(
        "learner.ranks",
        learner.ranks,
        estimate,
        memory,
        "a GPU",
        "raise learner.ranks, turn on "
        "learner.gradient_checkpointing, share rows by learner.sp_size, or lower serving.window and "
        "learner.micro_batch_tokens",
    )


def _over(learner: LearnerConfig) -> str:
    return f"x {learner.sp_size} ranks " if learner.sp_size > 1 else ""


@check("replica-memory")
@of_model
def replicas_fit(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    """A replica's weights, and a cache that holds at least one whole window."""
    serving, machine = facts.config.serving, facts.machine
    weights = model.parameters * _BYTES[serving.dtype] / serving.tensor_parallel
    token = kv_bytes(facts, model) / serving.tensor_parallel
    if not token:
        yield warn(
            "serving.window", serving.window, "config.json tells too little to size the cache", "watch the first step"
        )
        return
    if not facts.config.learner.gpus_per_rank:
        cache, field, value = float(serving.kv_cache_gib * GIB), "serving.kv_cache_gib", float(serving.kv_cache_gib)
        mend = "raise it"
    elif machine.gpus:
        memory = min(gpu.memory for gpu in machine.gpus)
        cache = serving.gpu_memory_utilization * memory - weights - _ENGINE
        field, value = "serving.gpu_memory_utilization", serving.gpu_memory_utilization
        mend = "raise it or serving.tensor_parallel, or lower serving.window"
        arithmetic = (
            f"{value:g} x {gib(memory)} - {gib(weights)} of weights - {gib(_ENGINE)} = {gib(cache)} of cache a GPU"
        )
        yield ok(field, value, arithmetic) if cache > 0 else fatal(field, value, f"{arithmetic}: none is left", mend)
        if cache <= 0:
            return
    else:
        yield warn(
            "serving.gpu_memory_utilization",
            serving.gpu_memory_utilization,
            f"{gib(weights)} of weights and "
            f"{gib(token * serving.window)} of cache for one window, and no GPU here to compare with",
            "compare with those of the cluster",
        )
        return
    windows = cache / (token * serving.window)
    arithmetic = (
        f"{gib(cache)} / ({token:,.0f} B x {serving.window} tokens) = {windows:.1f} whole windows a replica at a time"
    )
    wanted = min(serving.max_num_seqs, -(-facts.config.rollout.concurrency // serving.replicas))
    if windows < 1:
        yield fatal(field, value, f"{arithmetic}: a long trial would never fit", f"{mend}, or lower serving.window")
    elif windows < wanted / 4:
        yield warn(
            field,
            value,
            f"{arithmetic}, for {wanted} trials: most of them wait, or are computed again",
            f"{mend}, or lower rollout.concurrency",
        )
    else:
        yield ok(field, value, f"{arithmetic}, for {wanted} trials")


@check("host-memory")
@of_model
def host_fits(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    """On CPUs learner, replicas and sandboxes share this machine's memory; on GPUs it takes what they offload."""
    config, machine = facts.config, facts.machine
    if config.learner.gpus_per_rank:
        yield from _offloaded(facts, model)
        return
    rank = learner_memory(facts, model)
    ranks = config.learner.ranks * rank.total
    weights = model.parameters * _BYTES[config.serving.dtype]
    replicas = config.serving.replicas * (weights + config.serving.kv_cache_gib * GIB)
    total = ranks + replicas
    arithmetic = (
        f"{config.learner.ranks} ranks = {gib(ranks)} + {config.serving.replicas} replicas x ({gib(weights)} of "
        "weights + "
        f"{config.serving.kv_cache_gib} GiB of cache) = {gib(total)}"
    )
    mend = "lower serving.window and learner.micro_batch_tokens, or turn on learner.gradient_checkpointing"
    yield _judged(
        "learner, serving",
        "",
        Estimate(total, config.learner.ranks * rank.least + replicas, arithmetic),
        machine.memory,
        "this machine",
        mend,
    )
    if machine.memory_available < total <= machine.memory:
        yield warn(
            "learner, serving",
            "",
            f"{arithmetic}, and {gib(machine.memory_available)} are free now",
            "end what takes it",
        )


def _offloaded(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    """What ranks and sleeping replicas keep in host memory, on one node."""
    learner, serving, machine = facts.config.learner, facts.config.serving, facts.machine
    trained = model.parameters if learner.lora is None else _adapters(learner.lora.rank, model)
    parts = []
    if learner.offload_optimizer:
        parts.append((optimizer_bytes(learner) * trained / learner.nodes, "optimizer states"))
    if serving.colocated:
        asleep = serving.replicas * _BYTES[serving.dtype] * model.parameters
        parts.append((asleep, f"weights of {serving.replicas} sleeping replicas"))
        parts.append((_states(learner, model, 1)[0] * learner.ranks_per_node, "the learner's states while they serve"))
    if not parts:
        return
    total = sum(size for size, _ in parts)
    arithmetic = f"{' + '.join(f'{gib(size)} of {name}' for size, name in parts)} = {gib(total)} in host memory"
    mend = "set learner.offload_optimizer: false, serving.colocated: false, or use more nodes"
    estimate = Estimate(total, total, arithmetic)
    yield _judged("learner, serving", "", estimate, machine.memory, "this machine", mend)


@check("disk")
@of_model
def disk(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    """Checkpoints that are kept, the one that is being written, and the rollouts of all steps."""
    config = facts.config
    state = _BYTES[config.learner.dtype] + _ADAM + (_MASTER if config.learner.dtype == "bfloat16" else 0)
    trained = 2 if config.learner.critic is not None else 1
    one = trained * state * model.parameters
    every = config.schedule.keep_every
    more = config.schedule.keep_best + (config.schedule.total_steps // every if every else 0)
    kept = config.schedule.keep_checkpoints + more + 1
    rollouts = facts.trials * config.schedule.total_steps * config.serving.window * _TOKEN_BYTES
    total = kept * one + rollouts
    arithmetic = (
        f"({kept - 1} kept + 1 being written) x {state} B x "
        f"{trained * model.parameters / 1e6:,.0f} M "
        f"= {gib(kept * one)}, + {facts.trials * config.schedule.total_steps:,} trials of at most "
        f"{config.serving.window} "
        f"tokens x {_TOKEN_BYTES} B = {gib(rollouts)}"
    )
    free = disk_free(facts.root)
    if kept * one > free:
        yield fatal(
            "schedule.keep_checkpoints",
            config.schedule.keep_checkpoints,
            f"{arithmetic}; {gib(free)} are free at {facts.root}",
            "make room, lower it, or choose another --root",
        )
    elif total > free:
        yield warn(
            "schedule.total_steps",
            config.schedule.total_steps,
            f"{arithmetic}; {gib(free)} are free at {facts.root}: "
            "enough for the checkpoints, perhaps not for all trials",
            "make room, or choose another --root",
        )
    else:
        yield ok("schedule.keep_checkpoints", config.schedule.keep_checkpoints, f"{arithmetic}; {gib(free)} are free")


def _judged(field: str, value: object, estimate: Estimate, memory: int, whose: str, mend: str) -> Finding:
    """An estimate against what there is. Only what cannot be otherwise stops a run: nothing can be forced."""
    text = f"{estimate.arithmetic}; {whose} has {gib(memory)}"
    if estimate.least > memory:
        return fatal(field, value, text, mend)
    if estimate.total > 0.9 * memory:
        return warn(field, value, f"{text}: it may not do", mend)
    return ok(field, value, text)
