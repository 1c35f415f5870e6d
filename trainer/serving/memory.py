"""Snapshots of memory, for the metrics of learner and replicas that share a device."""

import psutil
import torch


def memory_used() -> int:
    """Bytes of this process's GPU that are in use, by all processes together; without one, what this process holds."""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return int(total - free)
    return int(psutil.Process().memory_info().rss)
