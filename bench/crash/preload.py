"""What the process holds that flows are forked from: all that a flow imports, so that a start costs no import."""

import mlflow
import ray
import torch
import transformers

import flows.train
import trainer.serving.replica

__all__ = ["flows", "mlflow", "ray", "torch", "trainer", "transformers"]
