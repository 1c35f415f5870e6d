"""A picture of a run: score and answer length by step."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def plot_run(steps: Sequence[tuple[int, Mapping[str, float]]], evaluations: Mapping[int, float], path: Path) -> Path:
    """Write a PNG with the training score, the held-out score and the mean answer length."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 5.5), sharex=True, height_ratios=(2, 1))
    numbers = [step for step, _ in steps]
    top.plot(
        numbers,
        [m.get("critic/score/mean") for _, m in steps],
        "o-",
        color="#1f77b4",
        label="training score (fresh tasks)",
    )
    if evaluations:
        points = sorted(evaluations.items())
        top.plot([s for s, _ in points], [v for _, v in points], "D--", color="#d62728", label="held-out functions")
    top.set_ylabel("share of trials solved")
    top.set_ylim(0, 1)
    top.grid(alpha=0.3)
    top.legend(loc="upper left")
    bottom.plot(numbers, [m.get("response_length/mean") for _, m in steps], "o-", color="#2ca02c")
    bottom.set_ylabel("tokens per answer")
    bottom.set_xlabel("step")
    bottom.grid(alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
