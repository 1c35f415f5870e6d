"""What the status of a pod means: pure functions of the JSON that the API server gives.

The question behind all of it is whose doing a loss is. A container that was killed for its memory, or a pod that was
evicted because its own volumes grew too large, is the policy's; a node that dies, a pod that somebody deletes and an
image that cannot be pulled are not.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.sandbox.kubernetes_pod import CONTAINERS, KEEPER

_HOPELESS = frozenset(
    {
        *("ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError"),
        *("RunContainerError", "ImageInspectError", "RegistryUnavailable"),
    }
)
_OWN_USE = re.compile(r"exceeds the (total )?limit|exceeded its local ephemeral storage limit")
"""What the kubelet writes when a pod is evicted for what it used itself, not for the node's need."""


@dataclass(frozen=True)
class Loss:
    """Why something is gone. `policy`: what ran inside caused it."""

    policy: bool
    reason: str


def is_running(pod: Mapping[str, Any]) -> bool:
    """Whether all containers of the pod run."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    running = {status["name"] for status in statuses if "running" in (status.get("state") or {})}
    return running.issuperset(CONTAINERS)


def why_waiting(pod: Mapping[str, Any]) -> str:
    """What a pod that does not run waits for, in the cluster's words."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{container['name']}: {waiting['reason']}: {waiting.get('message') or 'no message'}"
    for condition in status.get("conditions") or []:
        if condition.get("status") == "False" and condition.get("message"):
            return f"{condition.get('reason') or condition['type']}: {condition['message']}"
    return f"phase {status.get('phase') or 'unknown'}"


def never_starts(pod: Mapping[str, Any]) -> str:
    """Why a pod will not run however long one waits; empty while it may."""
    status = pod.get("status", {})
    if status.get("phase") in ("Failed", "Succeeded"):
        return _failure(status)
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        if (waiting := state.get("waiting")) and waiting.get("reason") in _HOPELESS:
            return f"{container['name']}: {waiting['reason']}: {waiting.get('message') or 'no message'}"
        if ended := state.get("terminated"):
            return f"{container['name']} ended: {ended.get('reason')} (exit code {ended.get('exitCode')})"
    return ""


def find_loss(pod: Mapping[str, Any] | None, container: str) -> Loss | None:
    """Why `container` of a pod that ran runs no more; None if it does. `pod` is None when the cluster knows it not."""
    if pod is None:
        return Loss(False, "the pod is gone; somebody, or the loss of its node, has deleted it")
    status = pod.get("status", {})
    message = str(status.get("message") or "")
    if status.get("reason") == "Evicted":
        return Loss(bool(_OWN_USE.search(message)), f"the pod was evicted: {message}")
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return Loss(False, "the pod is being deleted by somebody else")
    if status.get("phase") == "Unknown":
        return Loss(False, f"the pod's node does not answer: {_failure(status)}")
    if status.get("reason") in ("DeadlineExceeded", "NodeLost", "Shutdown", "NodeShutdown", "Terminated", "Preempting"):
        return Loss(False, _failure(status))
    for entry in status.get("containerStatuses") or []:
        ended = (entry.get("state") or {}).get("terminated")
        if entry["name"] == container and ended:
            reason = f"container {container} ended: {ended.get('reason')} (exit code {ended.get('exitCode')})"
            # Nothing but the policy's code runs there; and in the keeper none of it does.
            return Loss(container != KEEPER, reason)
    return Loss(False, _failure(status)) if status.get("phase") == "Failed" else None


def _failure(status: Mapping[str, Any]) -> str:
    words = [str(status[key]) for key in ("phase", "reason", "message") if status.get(key)]
    return "the pod ended: " + ": ".join(words)
