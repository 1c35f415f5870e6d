"""A trial's pod and its namespace's network policy, as plain manifests: pure functions of the configuration.

Three containers of one image share the workspace, the network namespace and nothing else:

* `commands` runs the trial's commands;
* `readonly` runs those that may not write: it has the same workspace, mounted read-only;
* `keeper` runs none of the trial's code. It reads and writes files for the host and holds the way to the proxy. It has
  a pid namespace of its own, so what runs in the other two cannot signal, trace or see it, though the user is the same.
"""

from collections.abc import Mapping
from typing import Any

from harness.sandbox.base import SandboxConfig
from harness.sandbox.kubernetes_config import KubernetesConfig, Toleration
from harness.sandbox.pod_main import CONTROL

COMMANDS, READONLY, KEEPER = "commands", "readonly", "keeper"
CONTAINERS = (KEEPER, COMMANDS, READONLY)

MANAGED_BY = {"app.kubernetes.io/managed-by": "testgrad", "app.kubernetes.io/component": "sandbox"}
"""Labels of every pod; what the network policy selects and leftovers are found by."""

POLICY_NAME = "testgrad-deny-all"

SHOWN = "/shown"
"""Where the keeper writes what the other containers see read-only: `/shown/0` is the first of `mounts`."""

_KEEPER_BYTES = 256 << 20
_SPARE_PROCESSES = 16  # the host's own, of the same user, which a limit on processes counts too


def pod_manifest(config: SandboxConfig, name: str, labels: Mapping[str, str], uid: int, init: str) -> dict[str, Any]:
    """The pod of one trial. `uid` is the user and group of all its processes, `init` the program of each process 1."""
    kube = config.kubernetes
    containers = [
        _container(config, uid, init, KEEPER, _keeper_mounts(kube), _keeper_resources(config)),
        _container(config, uid, init, COMMANDS, _mounts(config, writable=True), _resources(config, reserve=True)),
        _container(config, uid, init, READONLY, _mounts(config, writable=False), _resources(config, reserve=False)),
    ]
    spec: dict[str, Any] = {
        "containers": containers,
        "volumes": _volumes(config),
        "restartPolicy": "Never",  # a container that comes back would come back to a trial half done
        "activeDeadlineSeconds": kube.life_seconds,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": False,
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "setHostnameAsFQDN": False,
        "hostname": "sandbox",
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"], "options": [{"name": "timeout", "value": "1"}]},  # nobody listens
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": uid,
            "runAsGroup": uid,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if kube.user_namespaces:
        spec["hostUsers"] = False
    if kube.runtime_class is not None:
        spec["runtimeClassName"] = kube.runtime_class
    if kube.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in kube.image_pull_secrets]
    if kube.node_selector:
        spec["nodeSelector"] = dict(label.split("=", 1) for label in kube.node_selector)
    if kube.tolerations:
        spec["tolerations"] = [_toleration(each) for each in kube.tolerations]
    metadata = {"name": name, "namespace": kube.namespace, "labels": {**labels, **MANAGED_BY}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def process_limits(config: SandboxConfig) -> dict[str, int]:
    """Limits of each process of a command, by the names that Python gives them."""
    return {
        "RLIMIT_CORE": 0,
        "RLIMIT_AS": config.memory_bytes,
        "RLIMIT_CPU": config.cpu_seconds,
        "RLIMIT_FSIZE": config.file_bytes,
        "RLIMIT_NOFILE": config.open_files,
        "RLIMIT_NPROC": config.processes + _SPARE_PROCESSES,
    }


def network_policy(kube: KubernetesConfig) -> dict[str, Any]:
    """Nothing may reach the sandboxes of the namespace, and they may reach nothing. Other pods are not concerned."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": POLICY_NAME, "namespace": kube.namespace, "labels": dict(MANAGED_BY)},
        "spec": {"podSelector": {"matchLabels": dict(MANAGED_BY)}, "policyTypes": ["Ingress", "Egress"]},
    }


def _container(
    config: SandboxConfig,
    uid: int,
    init: str,
    name: str,
    mounts: list[dict[str, Any]],
    resources: dict[str, Any],
) -> dict[str, Any]:
    kube = config.kubernetes
    return {
        "name": name,
        "image": kube.image,
        "imagePullPolicy": kube.image_pull_policy,
        "command": [kube.python, "-I", "-S", "-B", "-c", init, name],
        "workingDir": "/",
        "resources": resources,
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": uid,
            "runAsGroup": uid,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _volumes(config: SandboxConfig) -> list[dict[str, Any]]:
    kube = config.kubernetes
    workspace = _empty(config.workspace_bytes, in_memory=kube.medium == "memory")
    return [
        {"name": "workspace", "emptyDir": workspace},
        {"name": "tmp", "emptyDir": _empty(config.tmp_bytes)},
        {"name": "shm", "emptyDir": _empty(config.tmp_bytes)},
        {"name": "control", "emptyDir": _empty(1 << 20)},
        *({"name": f"shown-{i}", "emptyDir": _empty(config.tmp_bytes)} for i in range(len(kube.mounts))),
    ]


def _empty(size: int, in_memory: bool = True) -> dict[str, Any]:
    # A memory-backed volume is as large as its limit and then full; one on disk is only watched.
    return {"sizeLimit": str(size), **({"medium": "Memory"} if in_memory else {})}


def _mounts(config: SandboxConfig, writable: bool) -> list[dict[str, Any]]:
    return [
        *({"name": "workspace", "mountPath": place, "readOnly": not writable} for place in config.places),
        {"name": "tmp", "mountPath": "/tmp", "readOnly": False},
        {"name": "shm", "mountPath": "/dev/shm", "readOnly": False},
        {"name": "control", "mountPath": CONTROL, "readOnly": True},
        *(
            {"name": f"shown-{i}", "mountPath": place, "readOnly": True}
            for i, place in enumerate(config.kubernetes.mounts)
        ),
    ]


def _keeper_mounts(kube: KubernetesConfig) -> list[dict[str, Any]]:
    return [
        {"name": "workspace", "mountPath": "/workspace", "readOnly": False},
        {"name": "control", "mountPath": CONTROL, "readOnly": False},
        *({"name": f"shown-{i}", "mountPath": f"{SHOWN}/{i}", "readOnly": False} for i in range(len(kube.mounts))),
    ]


def _resources(config: SandboxConfig, reserve: bool) -> dict[str, Any]:
    """What a container of commands may use; set aside for one of the two, since commands run one at a time."""
    kube = config.kubernetes
    in_memory = 2 * config.tmp_bytes + (config.workspace_bytes if kube.medium == "memory" else 0)
    memory = config.total_memory_bytes + in_memory
    limits = {"cpu": _cpu(kube.cpus), "memory": str(memory), "ephemeral-storage": _disk(config)}
    requests = {"cpu": _cpu(kube.cpu_request) if reserve else "10m", "memory": str(memory if reserve else 32 << 20)}
    return {"limits": limits, "requests": requests | {"ephemeral-storage": "1Mi"}}


def _keeper_resources(config: SandboxConfig) -> dict[str, Any]:
    """What is written into a volume in memory counts for who writes it: all that is uploaded, for the keeper."""
    volumes = config.workspace_bytes + config.tmp_bytes * len(config.kubernetes.mounts)
    limits = {"cpu": "1", "memory": str(_KEEPER_BYTES + volumes), "ephemeral-storage": _disk(config)}
    return {"limits": limits, "requests": {"cpu": "10m", "memory": "64Mi", "ephemeral-storage": "1Mi"}}


def _disk(config: SandboxConfig) -> str:
    spare = 64 << 20  # logs
    return str(spare + (config.workspace_bytes if config.kubernetes.medium == "disk" else 0))


def _toleration(toleration: Toleration) -> dict[str, str]:
    operator = "Exists" if toleration.value is None else "Equal"
    return {"operator": operator, **toleration.model_dump(exclude_none=True)}


def _cpu(cpus: float) -> str:
    return f"{max(1, round(cpus * 1000))}m"
