"""Where ranks run: a bundle of a Ray placement group on each node, all of them or none."""

from typing import Any

from trainer.learner.config import LearnerConfig
from trainer.learner.errors import LearnerError
from trainer.nodes import TRAIN, demand, nodes_for

_SECONDS = 60.0
_ANY_CPU = 0.001
"""A bundle must ask for something; ranks on CPUs take turns with everybody else."""


def reserve(name: str, config: LearnerConfig) -> Any:
    """The placement group `name`, made if there is none yet.

    Raises:
        LearnerError: the cluster is too small; says what it has.
    """
    import ray

    try:
        return ray.util.get_placement_group(name)
    except ValueError:
        pass
    gpus = config.ranks_per_node * config.gpus_per_rank
    _require_nodes(config, gpus)
    bundle = ({"GPU": float(gpus)} if gpus else {"CPU": _ANY_CPU}) | demand(TRAIN)
    strategy = "STRICT_SPREAD" if config.nodes > 1 else "STRICT_PACK"
    group = ray.util.placement_group([bundle] * config.nodes, strategy, name=name, lifetime="detached")
    if not group.wait(_SECONDS):
        ray.util.remove_placement_group(group)
        raise LearnerError(
            f"learner.nodes {config.nodes} x {gpus} GPUs are in the cluster, but not free after {_SECONDS:g} s; "
            "stop what holds them, or lower learner.ranks"
        )
    return group


def _require_nodes(config: LearnerConfig, gpus: int) -> None:
    nodes = [node["Resources"] for node in nodes_for(TRAIN)]
    able = [node for node in nodes if node.get("GPU", 0) >= gpus]
    if len(able) < config.nodes:
        needed = f"{config.nodes} nodes with {gpus} GPUs each" if gpus else f"{config.nodes} nodes"
        has = ", ".join(f"{node.get('GPU', 0):g}" for node in nodes)
        raise LearnerError(
            f"learner.nodes {config.nodes}, learner.ranks {config.ranks} need {needed}, but the cluster has "
            f"{len(nodes)} nodes with {has} GPUs for it; lower them, or set RAY_ADDRESS to a larger cluster"
        )


def place_of(group: Any, rank: int, config: LearnerConfig) -> Any:
    """How Ray is told to put a rank into its bundle."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=rank // config.ranks_per_node
    )


def release(name: str) -> None:
    """Give the placement group back; safe if there is none."""
    import ray

    try:
        ray.util.remove_placement_group(ray.util.get_placement_group(name))
    except ValueError:
        pass
