"""The `docker` section of the sandbox's configuration: which engines, which image, and what only they can limit."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

BASE_IMAGE = "testgrad-base:latest"
"""What deployments/docker/build_base.py makes; no registry has it."""

USUAL_URL = "unix:///var/run/docker.sock"
_UNUSED_UID = 50_000


class DockerHost(BaseModel):
    """One engine, at a local socket or behind mutual TLS."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(default=USUAL_URL, description="unix:///path/of/socket or tcp://host:port")
    tls: Path | None = Field(
        default=None, description="folder with ca.pem, cert.pem and key.pem; needed for tcp, else to be left out"
    )
    slots: int = Field(default=64, ge=1, description="sandboxes that live on this engine at a time")

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @field_validator("tls")
    @classmethod
    def _absolute(cls, folder: Path | None) -> Path | None:
        return None if folder is None else folder.expanduser().absolute()

    @model_validator(mode="after")
    def _reachable_safely(self) -> Self:
        scheme, separator, rest = self.url.partition("://")
        if not separator or not rest or scheme not in ("unix", "tcp"):
            raise ValueError(f"url {self.url!r} is none of unix:///path/of/socket and tcp://host:port")
        if scheme == "unix" and self.tls is not None:
            raise ValueError(f"url {self.url!r} is a local socket, which has no TLS; leave out tls")
        if scheme == "tcp" and self.tls is None:
            raise ValueError(
                f"url {self.url!r} without TLS lets everyone on the network become root there; "
                "set tls to the folder with ca.pem, cert.pem and key.pem"
            )
        return self

    @property
    def local(self) -> bool:
        """Whether the engine shares this machine's file system."""
        return self.url.startswith("unix://")


class DockerConfig(BaseModel):
    """Engines, image and limits of the `docker` backend."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: tuple[DockerHost, ...] = Field(
        default=(),
        description="engines, spread by free slots; none: the one that DOCKER_HOST names, else the local one",
    )
    image: str = Field(
        default=BASE_IMAGE,
        min_length=1,
        description="image with timeout(1) and a Python >= 3.9 on its PATH; see deployments/docker/build_base.py",
    )
    pull: Literal["missing", "never"] = Field(default="missing", description="whether an absent image is pulled")
    pull_attempts: int = Field(default=3, ge=1, description="tries of a pull before it is given up")
    pull_timeout: float = Field(default=120.0, gt=0, description="seconds without progress after which a pull fails")
    disk_floor_bytes: int = Field(
        default=10 << 30,
        ge=0,
        description="free bytes on the engine's disk; with less, pulled images are removed, longest unused first",
    )
    image_record: Path | None = Field(
        default=None, description="file that remembers pulled images and their use; none: in the user's cache folder"
    )
    uid: int | None = Field(
        default=None, ge=1, le=1 << 30, description="user and group that commands run as; none: 50000, or this user"
    )
    cpus: float = Field(default=2.0, gt=0, description="processors of one command")
    runtime: str | None = Field(default=None, description="OCI runtime of the engine, such as runsc; none: its default")

    def user(self) -> int:
        """The uid and gid that commands run as: never root's, and one that may pass what this user opens to it."""
        return self.uid or os.geteuid() or _UNUSED_UID


def hosts_of(config: DockerConfig, environment: Mapping[str, str] = os.environ) -> tuple[DockerHost, ...]:
    """The configured engines, else the one of the Docker client's own environment variables."""
    if config.hosts:
        return config.hosts
    url = environment.get("DOCKER_HOST") or USUAL_URL
    folder = environment.get("DOCKER_CERT_PATH") if environment.get("DOCKER_TLS_VERIFY") else None
    return (DockerHost(url=url, tls=Path(folder) if folder else None),)
