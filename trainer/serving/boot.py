"""What a replica is started with, so that another can take its place."""

from dataclasses import dataclass

from trainer.serving.config import ServingConfig


@dataclass(frozen=True)
class Boot:
    """`gpus` are the replica's own, 0 on CPUs and where it shares those of a learner."""

    model: str
    config: ServingConfig
    transport: str
    gpus: int
    log_file: str | None
