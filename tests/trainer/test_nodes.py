"""Which nodes a role may use."""

import pytest
import ray

from trainer.nodes import ROLLOUT, TRAIN, demand, nodes_for


def node(name, alive=True, **resources):
    return {"NodeID": name, "Alive": alive, "Resources": {"CPU": 8.0} | resources}


@pytest.fixture
def cluster(monkeypatch):
    def cluster(*nodes):
        monkeypatch.setattr(ray, "nodes", lambda: list(nodes))

    return cluster


def names(role):
    return [found["NodeID"] for found in nodes_for(role)]


def test_nodes_that_are_kept_for_a_role_are_the_only_ones(cluster):
    cluster(node("head"), node("a", train_node=1.0), node("b", rollout_node=1.0), node("c", rollout_node=1.0))
    assert names(TRAIN) == ["a"] and names(ROLLOUT) == ["b", "c"]
    assert demand(TRAIN) == {"train_node": 0.001} and demand(ROLLOUT) == {"rollout_node": 0.001}


def test_where_none_is_kept_for_it_everything_may_run_everywhere(cluster):
    cluster(node("a", train_node=1.0), node("b"))
    assert names(ROLLOUT) == ["a", "b"] and demand(ROLLOUT) == {}


def test_a_dead_node_is_none(cluster):
    cluster(node("a", alive=False, rollout_node=1.0), node("b"))
    assert names(ROLLOUT) == ["b"] and demand(ROLLOUT) == {}
