"""How learner and engine are spread, and whether what is divided can be."""

import os
from collections.abc import Iterator

from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, fatal, ok, unset, warn
from flows.preflight.model_facts import ModelFacts
from flows.preflight.of_model import of_model
from flows.preflight.registry import check
from trainer.learner.config import optimizer_steps
from trainer.learner.sequence.check import divisors


@check("devices")
def devices(facts: Facts) -> Iterator[Finding]:
    """Learner and replicas have GPUs of their own, or take turns; together no more than there are."""
    learner, serving, machine = facts.config.learner, facts.config.serving, facts.machine
    if not facts.is_set("learner.gpus_per_rank"):
        yield unset(
            "learner.gpus_per_rank",
            learner.gpus_per_rank,
            "nobody chose between CPUs and GPUs",
            "choose profiles.engine cpu or gpu",
        )
    if not learner.gpus_per_rank:
        yield from _cpus(facts)
        return
    sum_ = (
        f"{learner.ranks} ranks x {learner.gpus_per_rank} = {facts.gpus} GPUs, which {serving.replicas} replicas share "
        "in turns"
        if serving.colocated
        else f"{learner.ranks} ranks x {learner.gpus_per_rank} + {serving.replicas} replicas x "
        f"{serving.tensor_parallel} = {facts.gpus} GPUs"
    )
    if os.environ.get("RAY_ADDRESS"):
        yield warn(
            "learner.ranks, serving.replicas",
            "",
            f"{sum_} of the cluster at RAY_ADDRESS, which is not asked here",
            "compare with `ray status`",
        )
    elif facts.gpus > len(machine.gpus):
        yield fatal(
            "learner.ranks, serving.replicas",
            "",
            f"{sum_}, and this machine has {len(machine.gpus)}",
            "lower learner.ranks, serving.replicas or serving.tensor_parallel, or set RAY_ADDRESS to a larger cluster",
        )
    elif facts.gpus < len(machine.gpus):
        yield warn(
            "learner.ranks, serving.replicas",
            "",
            f"{sum_}, and this machine has {len(machine.gpus)}: the rest idles",
            "raise learner.ranks and serving.replicas"
            if serving.colocated
            else "raise serving.replicas, since trials take most of a step",
        )
    else:
        yield ok("learner.ranks, serving.replicas", "", f"{sum_}, all of this machine's")


def _cpus(facts: Facts) -> Iterator[Finding]:
    learner, serving, cpus = facts.config.learner, facts.config.serving, facts.machine.cpus
    if facts.machine.gpus:
        yield warn(
            "learner.gpus_per_rank",
            0,
            f"this machine has {len(facts.machine.gpus)} GPUs, which stay idle",
            "choose profiles.engine: gpu",
        )
    if serving.tensor_parallel > 1:
        yield warn(
            "serving.tensor_parallel",
            serving.tensor_parallel,
            "shards of a CPU replica compete for the same cores",
            "set it to 1",
        )
    threads = learner.ranks * (learner.threads or max(cpus // learner.ranks, 1))
    if learner.ranks > cpus:
        yield warn(
            "learner.ranks",
            learner.ranks,
            f"is more than the {cpus} cores: ranks wait for each other's turns",
            "lower it",
        )
    elif threads > cpus:
        yield warn(
            "learner.threads",
            learner.threads,
            f"{learner.ranks} ranks compute with {threads} threads on {cpus} cores",
            "leave it unset, or lower learner.ranks",
        )
    else:
        yield ok("learner.ranks", learner.ranks, f"x {threads // learner.ranks} threads on {cpus} cores")


@check("nodes")
def nodes(facts: Facts) -> Iterator[Finding]:
    """Ranks over several machines need a cluster of several, and a way for weights that leaves the machine."""
    learner, serving = facts.config.learner, facts.config.serving
    if learner.nodes == 1:
        yield ok("learner.nodes", 1, "the learner's ranks are on one machine")
        return
    if not os.environ.get("RAY_ADDRESS"):
        yield fatal(
            "learner.nodes",
            learner.nodes,
            "needs a cluster, and a private one has this machine only",
            "start one (ray start --head) and set RAY_ADDRESS, or set learner.nodes: 1",
        )
    elif serving.transport == "shared_memory":
        yield fatal(
            "serving.transport",
            serving.transport,
            f"reaches replicas of one machine only, and learner.nodes is {learner.nodes}",
            "set it to auto or nccl",
        )
    else:
        yield ok("learner.nodes", learner.nodes, f"with {learner.ranks_per_node} ranks each, in the cluster")


@check("tensor-parallel")
@of_model
def tensor_parallel(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    """Each shard of a replica holds whole heads, else the first forward pass reads beyond its memory."""
    size = facts.config.serving.tensor_parallel
    if size == 1:
        yield ok("serving.tensor_parallel", 1, "a replica is one device's")
        return
    counts = {"num_key_value_heads": model.kv_heads, "num_attention_heads": model.number("num_attention_heads")}
    for name, heads in counts.items():
        if heads is None:
            yield warn(
                "serving.tensor_parallel",
                size,
                f"the model's config.json tells no {name}",
                "make sure that it divides them",
            )
        elif heads % size:
            shares = ", ".join(map(str, divisors(heads)))
            yield fatal("serving.tensor_parallel", size, f"does not divide the model's {heads} {name}", f"use {shares}")
        else:
            yield ok("serving.tensor_parallel", size, f"divides the model's {heads} {name}")


@check("sequence-parallel")
@of_model
def sequence_parallel(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    """Ranks that share rows have whole heads each, and reach each other fast."""
    learner, heads = facts.config.learner, model.number("num_attention_heads")
    size = learner.sp_size
    if size == 1:
        yield ok("learner.sp_size", 1, "each rank computes rows of its own")
        return
    if heads is None:
        yield warn(
            "learner.sp_size",
            size,
            "the model's config.json tells no num_attention_heads",
            "make sure that it divides them",
        )
    elif heads % size:
        shares = ", ".join(map(str, divisors(heads)))
        yield fatal(
            "learner.sp_size", size, f"does not divide the model's {heads} num_attention_heads", f"use {shares}"
        )
    else:
        yield ok("learner.sp_size", size, f"divides the model's {heads} num_attention_heads")
    if learner.ranks_per_node % size:
        yield warn(
            "learner.sp_size",
            size,
            f"does not divide the {learner.ranks_per_node} ranks of a node: some rows are exchanged between nodes in "
            "every layer",
            "choose a divisor, unless a sequence needs more ranks than a node has",
        )


@check("batch")
def batch(facts: Facts) -> Iterator[Finding]:
    """Trials of a step over ranks, mini-batches, replicas and workers."""
    config, trials = facts.config, facts.trials
    learner, rollout, serving = config.learner, config.rollout, config.serving
    product = f"{rollout.tasks_per_step} tasks x {rollout.attempts_per_task} attempts = {trials} trials a step"
    for key in ("rollout.tasks_per_step", "rollout.attempts_per_task"):
        if not facts.is_set(key):
            name = key.partition(".")[2]
            yield unset(key, getattr(rollout, name), product, "set it, or choose profiles.mode")
    groups = learner.sequence_groups
    if trials < groups:
        yield warn(
            "learner.ranks", learner.ranks, f"{product}: some ranks would have none", "lower it, or raise the batch"
        )
    elif trials % groups:
        yield warn(
            "learner.ranks",
            learner.ranks,
            f"does not divide {product}: ranks with one less wait for the others",
            "choose a divisor",
        )
    else:
        yield ok("learner.ranks", learner.ranks, f"divides {product}")
    mini = learner.mini_batch_size
    if mini is None:
        yield ok("learner.mini_batch_size", mini, "one on-policy update a step, with all trials")
    elif mini < groups:
        who = f"{groups} ranks" if learner.sp_size == 1 else f"{groups} groups of {learner.sp_size} ranks"
        yield warn("learner.mini_batch_size", mini, f"is less than the {who}: some would have none", "raise it")
    else:
        steps = optimizer_steps(trials, mini)
        yield ok(
            "learner.mini_batch_size", mini, f"{steps} updates a step, with {trials / steps:.4g} of {product} each"
        )
    if rollout.concurrency > trials * 2:
        yield warn(
            "rollout.concurrency",
            rollout.concurrency,
            f"is more than a step ever has: {product}",
            f"set it to {trials}",
        )
    seats = serving.replicas * serving.max_num_seqs
    if rollout.concurrency > seats:
        yield warn(
            "rollout.concurrency",
            rollout.concurrency,
            f"is more than the {serving.replicas} replicas x "
            f"{serving.max_num_seqs} sequences = {seats} that are decoded at once: the others wait, on their own time",
            "raise serving.max_num_seqs or serving.replicas, or lower it",
        )
    else:
        yield ok("rollout.concurrency", rollout.concurrency, f"fits the {seats} sequences that are decoded at once")
