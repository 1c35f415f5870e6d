"""A pod's life against a fake API server: requests, retries, faults, and that nothing is left behind."""

import asyncio
import sys
from typing import Any

import pytest
from support.kube import FakeCluster, write_kubeconfig

from harness.sandbox import (
    Sandbox,
    SandboxConfig,
    SandboxError,
    SandboxUnavailable,
    create_sandbox,
    require_isolation,
)
from harness.sandbox.kubernetes import leftovers
from harness.sandbox.kubernetes_api import ApiError, _pause, open_api
from harness.sandbox.kubernetes_config import KubernetesConfig
from harness.sandbox.kubernetes_pod import MANAGED_BY, POLICY_NAME
from harness.sandbox.owner import Owner, current_owner, labels, owned_by

PODS = "/pods"


async def works(sandbox: Sandbox) -> bool:
    return (await sandbox.exec(["echo", "works"], timeout=20)).stdout == b"works\n"


def pending(reason: str, message: str) -> Any:
    waiting = {"waiting": {"reason": reason, "message": message}}
    return lambda pod: {"phase": "Pending", "containerStatuses": [{"name": "commands", "state": waiting}]}


async def test_one_pod_a_trial_with_its_owners_labels_and_nothing_left(cluster: FakeCluster) -> None:
    with owned_by(project="p", run="r", trial="t"):
        async with create_sandbox(cluster.config()) as sandbox:
            assert await works(sandbox)
            assert cluster.pod["metadata"]["labels"] == {**labels(current_owner()), **MANAGED_BY}
            assert set(cluster.policies) == {POLICY_NAME}
    assert cluster.pods == {}
    options = cluster.bodies[-1]
    assert (options["kind"], options["gracePeriodSeconds"]) == ("DeleteOptions", 0)
    before = len(cluster.requests)
    await sandbox.stop()
    assert len(cluster.requests) == before
    with pytest.raises(SandboxError, match="not running"):
        await sandbox.exec(["true"], timeout=1)


async def test_permissions_and_policy_are_looked_at_once(cluster: FakeCluster) -> None:
    for _ in range(2):
        async with create_sandbox(cluster.config()):
            pass
    assert cluster.count("POST", "networkpolicies") == 1
    assert cluster.count("POST", "selfsubjectaccessreviews") == 6


@pytest.mark.parametrize("status", [429, 500, 503, 409])
async def test_requests_that_are_turned_away_are_made_again(cluster: FakeCluster, status: int) -> None:
    cluster.fail("status", method="POST", part=PODS, status=status, times=2, headers={"Retry-After": "0"})
    cluster.fail("status", method="GET", part="/exec", status=status, times=2)
    cluster.fail("status", method="DELETE", status=status, times=2)
    async with create_sandbox(cluster.config()) as sandbox:
        assert await works(sandbox)
    assert cluster.count("POST", PODS) == 3
    assert cluster.pods == {}


async def test_answers_that_get_lost_make_no_second_pod(cluster: FakeCluster) -> None:
    cluster.fail("lost", method="POST", part=PODS)
    cluster.fail("lost", method="DELETE")
    async with create_sandbox(cluster.config()) as sandbox:
        assert len(cluster.pods) == 1
        assert await works(sandbox)
    assert cluster.count("POST", PODS) == 2
    assert cluster.pods == {}


async def test_a_refusal_is_final(cluster: FakeCluster) -> None:
    cluster.fail("status", method="POST", part=PODS, status=422, message="no such field")
    with pytest.raises(SandboxError, match="no such field"):
        await create_sandbox(cluster.config()).start()
    assert cluster.count("POST", PODS) == 1


async def test_a_full_namespace_is_waited_for(cluster: FakeCluster) -> None:
    cluster.fail("status", method="POST", part=PODS, status=403, message="exceeded quota: pods", times=3)
    async with create_sandbox(cluster.config()) as sandbox:
        assert await works(sandbox)


async def test_tries_end(cluster: FakeCluster) -> None:
    cluster.fail("status", method="POST", part=PODS, status=503, times=1000)
    with pytest.raises(ApiError, match="503"):
        await create_sandbox(cluster.config(attempts=3)).start()
    assert cluster.count("POST", PODS) == 3


def test_pauses_grow_are_jittered_and_bounded() -> None:
    pauses = [[_pause(1.0, attempt, 0.0) for _ in range(200)] for attempt in (1, 3, 20)]
    assert all(0.5 <= pause <= 1.5 for pause in pauses[0])
    assert all(2.0 <= pause <= 6.0 for pause in pauses[1])
    assert max(pauses[2]) <= 30.0
    assert len(set(pauses[0])) > 100
    assert _pause(0.01, 1, 7.0) == 7.0


async def test_new_credentials_are_read_when_the_old_ones_expire(cluster: FakeCluster) -> None:
    async with create_sandbox(cluster.config()) as sandbox:
        cluster.token = "another"
        write_kubeconfig(cluster)
        assert await works(sandbox)
        cluster.token = "unknown"
        with pytest.raises(SandboxError, match="401"):
            await works(sandbox)
        write_kubeconfig(cluster)


@pytest.mark.parametrize("reason", ["Unschedulable", "ImagePullBackOff"])
async def test_a_pod_that_never_runs_is_given_up_and_removed(cluster: FakeCluster, reason: str) -> None:
    cluster.status = pending(reason, "the cluster's words")
    with pytest.raises(SandboxError, match=f"within 1 s.*{reason}: the cluster's words"):
        await create_sandbox(cluster.config(start_timeout=1.0)).start()
    assert cluster.count("POST", PODS) == 1
    assert cluster.pods == {}


@pytest.mark.parametrize("reason", ["InvalidImageName", "CreateContainerConfigError", "ErrImageNeverPull"])
async def test_a_hopeless_pod_is_given_up_at_once(cluster: FakeCluster, reason: str) -> None:
    cluster.status = pending(reason, "why")
    with pytest.raises(SandboxError, match=f"does not start.*{reason}: why"):
        await create_sandbox(cluster.config()).start()
    assert cluster.pods == {}


async def test_cancelling_a_start_leaves_no_pod(cluster: FakeCluster) -> None:
    cluster.status = pending("Unschedulable", "x")
    task = asyncio.create_task(create_sandbox(cluster.config()).start())
    while not cluster.pods:
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cluster.pods == {}


async def test_cancelling_at_any_moment_leaves_no_pod(cluster: FakeCluster) -> None:
    async with create_sandbox(cluster.config()):
        pass  # the checks, which are made once
    cluster.status = lambda pod: {"phase": "Pending"}
    for step in range(12):
        task = asyncio.create_task(create_sandbox(cluster.config()).start())
        await asyncio.sleep(step * 0.004)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cluster.pods == {}


async def test_a_deletion_is_repeated_until_the_pod_is_gone(cluster: FakeCluster) -> None:
    async with create_sandbox(cluster.config()):
        cluster.deletions_kept = 3
    assert cluster.pods == {}
    assert cluster.count("DELETE", cluster.requests[-1][1]) == 4


async def test_a_pod_that_stays_is_an_error_and_stop_can_be_called_again(cluster: FakeCluster) -> None:
    sandbox = create_sandbox(cluster.config(stop_timeout=0.2))
    await sandbox.start()
    cluster.deletions_kept = 1000
    with pytest.raises(SandboxError, match="still there"):
        await sandbox.stop()
    cluster.deletions_kept = 0
    await sandbox.stop()
    assert cluster.pods == {}


async def test_a_pod_evicted_for_its_nodes_sake_is_the_machines_fault(cluster: FakeCluster) -> None:
    async with create_sandbox(cluster.config()) as sandbox:
        await cluster.evict("The node was low on resource: memory.")
        for attempt in (sandbox.exec(["true"], timeout=5), sandbox.read_tree(lambda p, d: True)):
            with pytest.raises(SandboxError, match="low on resource"):
                await attempt
    assert cluster.pods == {}


async def test_a_pod_that_somebody_deletes_is_the_machines_fault(cluster: FakeCluster) -> None:
    async with create_sandbox(cluster.config()) as sandbox:
        await cluster.node.kill()
        cluster.pods.clear()
        with pytest.raises(SandboxError, match="gone"):
            await sandbox.exec(["true"], timeout=5)


async def test_a_pod_evicted_for_what_it_wrote_is_the_policys_doing(cluster: FakeCluster) -> None:
    async with create_sandbox(cluster.config(medium="disk")) as sandbox:
        await cluster.evict('Usage of EmptyDir volume "workspace" exceeds the limit "1Gi".')
        assert (await sandbox.exec(["true"], timeout=5)).exit_code == 137
        tree = await sandbox.read_tree(lambda p, d: True)
        assert "exceeds the limit" in tree.overflow


async def test_isolation_is_required(cluster: FakeCluster) -> None:
    await asyncio.to_thread(require_isolation, cluster.config())
    cluster.denied = {("create", "pods/exec"), ("delete", "pods")}
    with pytest.raises(SandboxUnavailable, match=r"delete pods, create pods/exec.*Role"):
        await asyncio.to_thread(require_isolation, cluster.config(namespace="other"))
    nowhere = KubernetesConfig(kubeconfig=cluster.kubeconfig.with_name("missing"))
    with pytest.raises(SandboxUnavailable, match="kubeconfig"):
        await asyncio.to_thread(require_isolation, SandboxConfig(backend="kubernetes", kubernetes=nowhere))


async def test_a_cluster_that_does_not_answer_is_unavailable(cluster: FakeCluster) -> None:
    cluster.url = "http://127.0.0.1:9"
    write_kubeconfig(cluster)
    with pytest.raises(SandboxUnavailable, match="no answer"):
        await create_sandbox(cluster.config(attempts=2)).start()


async def test_a_missing_client_names_the_mend(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.aio", None)
    with pytest.raises(SandboxUnavailable, match=r"pip install 'testgrad\[k8s\]'"):
        await create_sandbox(cluster.config()).start()


async def test_a_network_that_is_open_is_refused(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.sandbox.kubernetes_access._SETTLING", 0.1)
    cluster.env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "9"}  # refuses, so it is reached
    with pytest.raises(SandboxUnavailable, match=r"reaches 127.0.0.1:9.*NetworkPolicy"):
        await create_sandbox(cluster.config()).start()
    assert cluster.pods == {}


async def test_a_policy_that_permits_something_is_refused(cluster: FakeCluster) -> None:
    async with create_sandbox(cluster.config()):
        pass
    cluster.policies[POLICY_NAME]["spec"]["egress"] = [{}]
    with pytest.raises(SandboxUnavailable, match="was changed"):
        await create_sandbox(cluster.config(grace=4.0)).start()


async def test_leftovers_are_pods_of_the_dead(cluster: FakeCluster) -> None:
    me = current_owner()
    dead = Owner("p", "r", "t", me.host, me.pid, "another.start")
    elsewhere = Owner("p", "r", "t", "host.1", 1, "x.1")
    cluster.status = lambda pod: {"phase": "Running"}
    cluster.page = 2
    owners = {
        "dead": labels(dead),
        "mine": labels(me),
        "elsewhere": labels(elsewhere),
        "foreign": {},
        "dead-too": labels(dead),
    }
    for name, of_owner in owners.items():
        cluster.pods[name] = {"metadata": {"name": name, "labels": {**MANAGED_BY, **of_owner}}}
    cluster.pods["unmanaged"] = {"metadata": {"name": "unmanaged", "labels": labels(dead)}}
    config = cluster.config()
    found = await asyncio.to_thread(leftovers, config)
    assert {(entry.backend, entry.kind, entry.name) for entry in found} == {
        ("kubernetes", "pod", "dead"), ("kubernetes", "pod", "dead-too")
    }  # fmt: skip
    for _ in range(2):
        await asyncio.to_thread(found[0].remove)
    assert set(cluster.pods) == {*owners, "unmanaged"} - {found[0].name}


async def test_sandboxes_of_a_loop_share_one_client(cluster: FakeCluster) -> None:
    config = cluster.config()
    async with open_api(config.kubernetes) as one, open_api(config.kubernetes) as other:
        assert one is other
    assert one._rest is None
