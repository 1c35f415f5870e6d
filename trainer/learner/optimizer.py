"""The optimizer of a model."""

import shutil
from collections.abc import Iterable

import torch

from trainer.learner.config import LearnerConfig


class OptimizerError(ValueError):
    """The optimizer that the config names cannot run here."""


def make_optimizer(
    parameters: Iterable[torch.nn.Parameter], lr: float, weight_decay: float, config: LearnerConfig
) -> torch.optim.Optimizer:
    """AdamW over those parameters that are trained.

    Raises:
        OptimizerError: DeepSpeed's is asked for, and it cannot be compiled here.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(trained, lr=lr, betas=config.betas, weight_decay=weight_decay, fused=True)
    if shutil.which("c++") is None or shutil.which("ninja") is None:
        raise OptimizerError(
            "learner.optimizer cpu_adam is compiled when it is first used, which needs c++ and ninja on PATH; "
            "install them, or take optimizer: adamw"
        )
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    optimizer: torch.optim.Optimizer = DeepSpeedCPUAdam(
        trained, lr=lr, betas=config.betas, weight_decay=weight_decay, adamw_mode=True
    )
    return optimizer
