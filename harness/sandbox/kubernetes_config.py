"""The `kubernetes` section of the sandbox's configuration: which cluster, which image, and how long a pod may live."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from harness.sandbox.forwarder import FORWARDER_PATH

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OWN_FOLDERS = ("/workspace", "/tmp", "/dev", "/proc", "/sys", str(Path(FORWARDER_PATH).parent))


class Toleration(BaseModel):
    """A toleration, as in a pod's spec."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str = Field(min_length=1, description="key of the taint")
    value: str | None = Field(default=None, description="value of the taint; none: any")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="effect of the taint; none: any"
    )


class KubernetesConfig(BaseModel):
    """Cluster, image and budgets of the `kubernetes` backend."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    namespace: str = Field(
        default="testgrad", pattern=f"^{_LABEL}$", max_length=63, description="namespace of the pods; it must exist"
    )
    kubeconfig: Path | None = Field(
        default=None, description="kubeconfig file; none: KUBECONFIG, else ~/.kube/config, else the pod's own account"
    )
    context: str | None = Field(default=None, description="context of the kubeconfig; none: its current one")
    image: str = Field(
        default="testgrad-base:latest",
        min_length=1,
        description="image with a Python >= 3.9; nodes must be able to pull it, or have it",
    )
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        default="IfNotPresent", description="when nodes pull the image"
    )
    image_pull_secrets: tuple[str, ...] = Field(default=(), description="names of secrets of the namespace")
    python: str = Field(default="python3", min_length=1, description="the image's Python: a path, or a name on PATH")
    mounts: tuple[str, ...] = Field(
        default=("/grader", "/tests"),
        description="places at which files can be shown read-only; a pod's mounts are fixed when it is made",
    )
    medium: Literal["memory", "disk"] = Field(
        default="memory",
        description="where workspaces lie: in memory a full one is an error of the writer's; on a node's disk the "
        "whole pod is evicted, and the trial's work with it",
    )
    cpus: float = Field(default=2.0, gt=0, description="processors of one command at most")
    cpu_request: float = Field(default=0.25, gt=0, description="processors that the scheduler sets aside for a pod")
    life_seconds: int = Field(
        default=14_400,
        ge=60,
        description="age at which the cluster ends a pod by itself; above the sum of a trial's budgets",
    )
    start_timeout: float = Field(
        default=600.0, gt=0, description="seconds until a pod must run, waiting for a place and pulling included"
    )
    stop_timeout: float = Field(default=60.0, gt=0, description="seconds until a deleted pod must be gone")
    request_timeout: float = Field(default=30.0, gt=0, description="seconds for one answer of the API server")
    attempts: int = Field(
        default=6, ge=1, description="tries of a request that the API server turns away (429, 5xx) or that gets lost"
    )
    backoff: float = Field(
        default=0.5, gt=0, description="seconds before the second try; doubled for each further one, up to 30, jittered"
    )
    grace: float = Field(
        default=15.0, gt=0, description="seconds beyond a command's deadline until it is ended from outside"
    )
    check_network: bool = Field(
        default=True,
        description="try, once a process, whether a pod reaches the API server or its node, and refuse to go on if so",
    )
    user_namespaces: bool = Field(
        default=False, description="pods get a user namespace of their own (hostUsers: false); nodes must support it"
    )
    runtime_class: str | None = Field(default=None, description="RuntimeClass such as gvisor or kata; none: default")
    node_selector: tuple[str, ...] = Field(
        default=(), description="labels of the nodes that may run pods, each as key=value"
    )
    tolerations: tuple[Toleration, ...] = Field(default=(), description="taints of nodes that pods put up with")

    @field_validator("kubeconfig")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @field_validator("node_selector")
    @classmethod
    def _pairs(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        for label in labels:
            if not label.partition("=")[0] or label.count("=") != 1:
                raise ValueError(f"node_selector: {label!r} is no key=value; use one such as 'pool=sandboxes'")
        return labels

    @field_validator("mounts")
    @classmethod
    def _places(cls, mounts: tuple[str, ...]) -> tuple[str, ...]:
        for mount in mounts:
            parts = Path(mount).parts
            if not mount.startswith("/") or ".." in parts or len(parts) < 2 or ":" in mount:
                raise ValueError(f"mounts: {mount!r} is no absolute path below /; use one such as '/tests'")
            for own in _OWN_FOLDERS:
                if Path(mount).is_relative_to(own) or Path(own).is_relative_to(mount):
                    raise ValueError(f"mounts: {mount!r} collides with {own}; use another place such as '/tests'")
        if len(set(mounts)) < len(mounts):
            raise ValueError(f"mounts: {list(mounts)} names a place twice; leave one out")
        return mounts

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.cpu_request > self.cpus:
            raise ValueError(f"cpu_request {self.cpu_request} is above cpus {self.cpus}; lower it")
        if self.start_timeout >= self.life_seconds:
            raise ValueError(
                f"life_seconds {self.life_seconds} must exceed start_timeout {self.start_timeout}; raise it"
            )
        return self
