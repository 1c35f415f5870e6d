"""The manifests, by Kubernetes' own schemas and by what they must say; and what a configuration may not say."""

from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate.utils import all_versions

from harness.sandbox import SandboxConfig
from harness.sandbox.kubernetes_config import KubernetesConfig, Toleration
from harness.sandbox.kubernetes_pod import COMMANDS, KEEPER, MANAGED_BY, READONLY, network_policy, pod_manifest
from harness.sandbox.kubernetes_stream import PROGRAM
from harness.sandbox.owner import Owner, labels

OWNER = Owner("proj", "run", "trial-1", "node.1", 12, "ab.34")
VERSIONS = [v for v in dict.fromkeys(all_versions()) if int(v.split(".")[1]) >= 30]


def manifest(**kube: Any) -> dict[str, Any]:
    config = SandboxConfig(backend="kubernetes", kubernetes=KubernetesConfig(**kube))
    return pod_manifest(config, "testgrad-1", labels(OWNER), 51234, PROGRAM)


def containers(**kube: Any) -> dict[str, dict[str, Any]]:
    return {container["name"]: container for container in manifest(**kube)["spec"]["containers"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid(version: str) -> None:
    full = {
        "medium": "disk",
        "user_namespaces": True,
        "runtime_class": "gvisor",
        "image_pull_secrets": ("secret",),
        "node_selector": ("pool=sandboxes",),
        "tolerations": (Toleration(key="a", value="b", effect="NoSchedule"), Toleration(key="c")),
        "mounts": ("/grader", "/tests", "/opt/more"),
    }
    for one in (manifest(), manifest(**full), network_policy(KubernetesConfig())):
        assert kubernetes_validate.validate(one, version, strict=True)


def test_every_container_is_hardened() -> None:
    found = containers()
    assert set(found) == {COMMANDS, READONLY, KEEPER}
    for container in found.values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 51234,
            "runAsGroup": 51234,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert set(container["resources"]["limits"]) == {"cpu", "memory", "ephemeral-storage"}
        assert "env" not in container and "envFrom" not in container and "ports" not in container


def test_a_pod_has_no_network_identity_and_an_end() -> None:
    spec = manifest(life_seconds=7200)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["shareProcessNamespace"] is False
    assert (spec["hostNetwork"], spec["hostPID"], spec["hostIPC"]) == (False, False, False)
    assert (spec["dnsPolicy"], spec["dnsConfig"]["nameservers"]) == ("None", ["127.0.0.1"])
    assert spec["activeDeadlineSeconds"] == 7200
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Never", 0)
    assert manifest()["metadata"]["labels"] == {**labels(OWNER), **MANAGED_BY}


def test_volumes_are_bounded_and_only_the_keeper_writes_where_others_read() -> None:
    volumes = {volume["name"]: volume for volume in manifest()["spec"]["volumes"]}
    assert all(set(volume) == {"name", "emptyDir"} for volume in volumes.values())  # nothing of a node's
    assert all(volume["emptyDir"]["sizeLimit"] for volume in volumes.values())
    assert volumes["workspace"]["emptyDir"]["medium"] == "Memory"

    def writable(name: str) -> set[str]:
        return {mount["mountPath"] for mount in containers()[name]["volumeMounts"] if not mount["readOnly"]}

    assert writable(COMMANDS) == {"/workspace", "/tmp", "/dev/shm"}
    assert writable(READONLY) == {"/tmp", "/dev/shm"}
    assert writable(KEEPER) == {"/workspace", "/run/testgrad", "/shown/0", "/shown/1"}
    assert not {"/tmp", "/dev/shm"} & writable(KEEPER)  # where hostile code could lay something out for it


def test_memory_holds_the_volumes_in_memory_too() -> None:
    def limit(**kube: Any) -> int:
        return int(containers(**kube)[COMMANDS]["resources"]["limits"]["memory"])

    config = SandboxConfig()
    assert limit() == config.total_memory_bytes + 2 * config.tmp_bytes + config.workspace_bytes
    assert limit(medium="disk") == config.total_memory_bytes + 2 * config.tmp_bytes
    disk = containers(medium="disk")[COMMANDS]["resources"]["limits"]["ephemeral-storage"]
    assert int(disk) > config.workspace_bytes


def test_the_policy_selects_the_pods_and_permits_nothing() -> None:
    policy = network_policy(KubernetesConfig(namespace="other"))
    assert policy["metadata"]["namespace"] == "other"
    assert policy["spec"] == {"podSelector": {"matchLabels": MANAGED_BY}, "policyTypes": ["Ingress", "Egress"]}
    assert MANAGED_BY.items() <= manifest()["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("mounts", ("/workspace/x",), "collides"),
        ("mounts", ("/",), "no absolute path"),
        ("mounts", ("tests",), "no absolute path"),
        ("mounts", ("/a", "/a"), "twice"),
        ("namespace", "No_Such", "pattern"),
        ("cpu_request", 8.0, "above cpus"),
        ("start_timeout", 1e6, "must exceed"),
        ("node_selector", ("pool",), "key=value"),
        ("image", "", "at least 1"),
    ],
)
def test_bad_configurations_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KubernetesConfig(**{field: value})


def test_a_configuration_can_be_a_key() -> None:
    assert hash(SandboxConfig(kubernetes=KubernetesConfig(node_selector=("a=b",), tolerations=(Toleration(key="c"),))))
