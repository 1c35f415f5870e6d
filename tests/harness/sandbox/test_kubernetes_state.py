"""Whose doing it is that a pod is gone, as read off its status."""

from typing import Any

import pytest

from harness.sandbox.kubernetes_state import find_loss, is_running, never_starts, why_waiting
from harness.sandbox.kubernetes_stream import parse_end


def pod(phase: str = "Running", states: dict[str, dict[str, Any]] | None = None, **status: Any) -> dict[str, Any]:
    running: dict[str, dict[str, Any]] = {name: {"running": {}} for name in ("keeper", "commands", "readonly")}
    entries = [{"name": name, "state": state} for name, state in (running | (states or {})).items()]
    return {"metadata": {}, "status": {"phase": phase, "containerStatuses": entries, **status}}


def evicted(message: str) -> dict[str, Any]:
    return pod("Failed", reason="Evicted", message=message)


OOM = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}


@pytest.mark.parametrize(
    ("lost", "container", "policy"),
    [
        (pod(states={"commands": OOM}), "commands", True),
        (pod(states={"keeper": OOM}), "keeper", False),
        (evicted('Usage of EmptyDir volume "workspace" exceeds the limit "1Gi". '), "keeper", True),
        (evicted("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "), "commands", True),
        (evicted("Container commands exceeded its local ephemeral storage limit"), "commands", True),
        (evicted("The node was low on resource: memory. Container commands was using 2Gi"), "commands", False),
        (pod("Failed", reason="DeadlineExceeded", message="Pod was active longer than"), "commands", False),
        (pod("Failed", reason="Shutdown"), "commands", False),
        (pod("Unknown"), "commands", False),
        (pod() | {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "commands", False),
        (None, "commands", False),
    ],
)
def test_losses(lost: dict[str, Any] | None, container: str, policy: bool) -> None:
    loss = find_loss(lost, container)
    assert loss is not None
    assert loss.policy is policy
    assert loss.reason


def test_what_runs_is_not_lost() -> None:
    assert find_loss(pod(), "commands") is None
    assert find_loss(pod(states={"commands": OOM}), "readonly") is None


def test_starting() -> None:
    creating = pod("Pending", {"commands": {"waiting": {"reason": "ContainerCreating"}}})
    pulling = pod("Pending", {"commands": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}})
    invalid = pod("Pending", {"commands": {"waiting": {"reason": "InvalidImageName", "message": "bad"}}})
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}
    assert is_running(pod())
    for waits in (creating, pulling, pod("Pending", conditions=[condition])):
        assert never_starts(waits) == ""
    assert not is_running(creating)
    assert "no such image" in why_waiting(pulling)
    assert "no node fits" in why_waiting(pod("Pending", conditions=[condition]))
    assert "InvalidImageName" in never_starts(invalid)
    assert "ended" in never_starts(pod(states={"keeper": OOM}))
    assert "Evicted" in never_starts(evicted("x"))


def test_ends_of_streams() -> None:
    assert parse_end(b'{"status": "Success"}') == (0, "exit code 0")
    failure = (
        b'{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}'
    )
    assert parse_end(failure) == (7, "exit code 7")
    assert parse_end(b'{"status":"Failure","message":"error dialing backend"}') == (None, "error dialing backend")
    for garbage in (b"", b"[]", b"{", b'{"status":"Failure","reason":"NonZeroExitCode"}'):
        assert parse_end(garbage)[0] is None
