"""Nodes of the cluster that are kept for a role: those whose Ray resources name it, where any do.

`ray start --resources '{"rollout_node": 1}'` makes one. In a cluster without such nodes everything may run everywhere.
"""

from typing import Any

TRAIN, ROLLOUT = "train_node", "rollout_node"
_SHARE = 0.001
"""What an actor takes of its node's role: enough to be placed by it, too little to run out."""


def nodes_for(role: str) -> list[dict[str, Any]]:
    """The living nodes that are kept for a role; all that are alive if none is."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    return [node for node in alive if node["Resources"].get(role)] or alive


def demand(role: str) -> dict[str, float]:
    """The resources by which Ray places an actor, or a bundle, on a node of that role; none if no node has one."""
    return {role: _SHARE} if any(node["Resources"].get(role) for node in nodes_for(role)) else {}
