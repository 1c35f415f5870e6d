"""A Ray cluster that outlives flows: `python -m bench.crash.cluster` prints its address, and ends with its input."""

import sys

from deployments import guardian
from trainer.placement import ray_cluster


def main() -> None:
    """Hold the cluster. If this process is killed, a guardian ends what it started, as that of any command does."""
    guardian.start()
    with ray_cluster():
        import ray

        print(ray.get_runtime_context().gcs_address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
