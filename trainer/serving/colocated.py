"""What must hold for replicas that share the learner's GPUs."""

from trainer.learner.config import LearnerConfig
from trainer.serving.config import ServingConfig


def check_colocation(serving: ServingConfig, learner: LearnerConfig) -> None:
    """Raises ValueError, naming field and mend, if replicas are to share GPUs that the learner does not have so."""
    if not serving.colocated:
        return
    if not learner.gpus_per_rank:
        raise ValueError(
            "serving.colocated is true, but learner.gpus_per_rank is 0: vLLM gives no memory back on CPUs; "
            "set serving.colocated: false, or learner.gpus_per_rank: 1"
        )
    if serving.replicas > learner.ranks:
        raise ValueError(
            f"serving.colocated puts each replica on the GPU of a rank, but serving.replicas is {serving.replicas} and "
            f"learner.ranks {learner.ranks}; lower the replicas"
        )
    if learner.zero_stage != 3:
        raise ValueError(
            f"serving.colocated needs a learner that can leave the GPU, but learner.zero_stage is "
            f"{learner.zero_stage}; set it to 3"
        )
