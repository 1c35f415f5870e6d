"""A checkpoint of so many ranks, for a learner of another number: through DeepSpeed's universal checkpoint.

It holds each parameter's fp32 weights and moments whole, from which every rank takes its part. Twelve bytes a parameter
are written for as long as it takes to load them.
"""

import contextlib
import io
import shutil
from argparse import Namespace
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trainer.learner.ranks import on_first_rank


def load(engine: Any, folder: Path, scratch: Path) -> None:
    """Restore one model from its shards in `folder`, by way of the folder `scratch`. A collective.

    Parameters that are frozen stay as they are: they are not in the optimizer, and have not moved.

    Raises:
        CheckpointError: it cannot be laid out anew, such as for want of disk space.
    """
    from trainer.learner.checkpoint import CheckpointError

    on_first_rank(partial(_convert, folder, scratch), CheckpointError)
    optimizer = engine.optimizer.optimizer
    settings = [{key: group[key] for key in group.keys() - _STATE} for group in optimizer.param_groups]
    engine._config.load_universal_checkpoint = True
    try:
        engine.load_checkpoint(str(scratch), tag=_TAG)
    finally:
        engine._config.load_universal_checkpoint = False
    # DeepSpeed gives all groups the settings of the first, and all their parameters one and the same count of steps, in
    # host memory, where a fused optimizer on a GPU does not look for it
    for group, kept in zip(optimizer.param_groups, settings, strict=True):
        group |= kept
    for parameter, state in optimizer.state.items():
        step = state["step"]
        is_tensor = isinstance(step, torch.Tensor)
        state["step"] = step.detach().to(parameter.device, copy=True) if is_tensor else deepcopy(step)
    on_first_rank(partial(shutil.rmtree, scratch), CheckpointError)


_TAG = "universal"
_STATE = {"params", "lr", "initial_lr"}
"""What of a parameter group is state; the rest is configuration."""


def _convert(folder: Path, scratch: Path) -> None:
    from deepspeed.checkpoint.ds_to_universal import main

    from trainer.learner.checkpoint import CheckpointError

    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / _TAG).mkdir(parents=True)
    options = Namespace(
        input_folder=str(folder),
        output_folder=str(scratch / _TAG),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    silence = io.StringIO()
    try:
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            main(options)
    except (RuntimeError, KeyError, AssertionError) as error:  # writes that failed; shards without moments
        shutil.rmtree(scratch, ignore_errors=True)
        raise CheckpointError(
            f"{folder} cannot be laid out for another number of ranks ({error}); set learner.ranks to its own"
        ) from error
