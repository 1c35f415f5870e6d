"""Whether a cluster can be used and isolates: permissions, the network policy, and a look from inside a pod."""

import asyncio
from collections.abc import Mapping
from typing import Any

from harness.sandbox.base import SandboxUnavailable
from harness.sandbox.kubernetes_api import ApiError, KubeApi
from harness.sandbox.kubernetes_pod import KEEPER, POLICY_NAME, network_policy
from harness.sandbox.kubernetes_stream import ask

_NEEDED = (
    *(("pods", "", verb) for verb in ("create", "get", "list", "delete")),
    *(("pods", "exec", verb) for verb in ("create", "get")),  # which of the two is asked for depends on the version
)
_KUBELET_PORT = 10250
_SETTLING = 15.0
"""Seconds that a network plugin may take to apply the policy to a new pod."""

_accessible: set[str] = set()
_closed: set[str] = set()


async def check_access(api: KubeApi) -> None:
    """Permissions of this account in the namespace, and its network policy, which is made if missing; once a process.

    Raises:
        SandboxUnavailable: the message names the mend.
    """
    key = _cluster(api)
    if key in _accessible:
        return
    try:
        missing = [f"{verb} {'/'.join(filter(None, (resource, sub)))}" for resource, sub, verb in _NEEDED
                   if not await _may(api, resource, sub, verb)]  # fmt: skip
        if missing:
            raise SandboxUnavailable(
                f"this account may not {', '.join(missing)} in namespace {api.kube.namespace}; "
                "mend: a Role with these verbs and a RoleBinding to the account"
            )
        await _ensure_policy(api)
    except ApiError as error:
        raise SandboxUnavailable(
            f"the cluster does not let sandboxes be made: {error}; look at sandbox.kubernetes.kubeconfig, context and "
            f"namespace (kubectl create namespace {api.kube.namespace})"
        ) from error
    _accessible.add(key)


async def check_network(api: KubeApi, pod_name: str, pod: Mapping[str, Any]) -> None:
    """Try from inside a pod what must not work, once a process: to reach the API server or the pod's own node.

    Raises:
        SandboxUnavailable: something was reached.
    """
    key = _cluster(api)
    if key in _closed or not api.kube.check_network:
        return
    node = pod.get("status", {}).get("hostIP")
    job = {"op": "reach", "targets": [[node, _KUBELET_PORT]] if node else []}
    end = asyncio.get_running_loop().time() + _SETTLING
    while reached := (await ask(api, pod_name, KEEPER, job)).told["reached"]:
        if asyncio.get_running_loop().time() > end:
            raise SandboxUnavailable(
                f"a pod reaches {', '.join(reached)} in spite of NetworkPolicy {POLICY_NAME}: the cluster's network "
                "plugin does not enforce it, or another policy of the namespace permits it; "
                "mend: a plugin that enforces network policies, such as Calico or Cilium, and a namespace of its own"
            )
        await asyncio.sleep(1.0)
    _closed.add(key)


def _cluster(api: KubeApi) -> str:
    """What the answers depend on: all of the configuration but the image, which differs from task to task."""
    return api.kube.model_dump_json(exclude={"image"})


def forget() -> None:
    """Check anew next time."""
    _accessible.clear()
    _closed.clear()


async def _may(api: KubeApi, resource: str, subresource: str, verb: str) -> bool:
    attributes = {"namespace": api.kube.namespace, "verb": verb, "resource": resource, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await api.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
    return bool((answer.get("status") or {}).get("allowed"))


async def _ensure_policy(api: KubeApi) -> None:
    path = f"/apis/networking.k8s.io/v1/namespaces/{api.kube.namespace}/networkpolicies"
    wanted = network_policy(api.kube)
    try:
        found = await api.request("GET", f"{path}/{POLICY_NAME}")
    except ApiError as error:
        if error.status != 404:
            raise
        try:
            found = await api.request("POST", path, body=wanted)
        except ApiError as refused:
            if refused.reason != "AlreadyExists":  # somebody else has just made it
                raise
            found = await api.request("GET", f"{path}/{POLICY_NAME}")
    spec = found.get("spec") or {}
    same = spec.get("podSelector") == wanted["spec"]["podSelector"]
    both = set(spec.get("policyTypes", [])) == {"Ingress", "Egress"}
    if not (same and both) or spec.get("ingress") or spec.get("egress"):
        raise SandboxUnavailable(
            f"NetworkPolicy {POLICY_NAME} of namespace {api.kube.namespace} was changed and permits something; "
            "delete it, and it is made anew"
        )
