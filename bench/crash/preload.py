"""What the process holds that flows are forked from: all that a flow imports, so that a start costs no import.

Some of it is imported by what is here only when it is used: MLflow's store in a database, transformers' tokenizers.
"""

import alembic.command
import mlflow.store.tracking.sqlalchemy_store
import pyarrow.dataset
import ray
import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

import flows.preflight.checks
import flows.train
import trainer.serving.replica

__all__ = [
    "AutoConfig", "AutoTokenizer", "PreTrainedTokenizerFast", "alembic", "flows", "mlflow", "pyarrow", "ray", "torch",
    "trainer",
]  # fmt: skip
