"""A picture of a pool's difficulty: how many tasks have which pass rate."""

from collections.abc import Sequence
from pathlib import Path

from harness.pool.difficulty import histogram
from harness.pool.index import PoolError, TaskPointer
from harness.pool.index_tools import pass_rates


def plot_difficulty(rows: Sequence[TaskPointer], path: Path) -> Path:
    """Write a PNG with the histogram of the rows' pass rates; tasks at its ends teach nothing, and stand out.

    Raises:
        PoolError: no row has a pass rate.
    """
    rates = pass_rates(rows)
    if not rates:
        raise PoolError("no task of the index has a pass_rate; measure it first, by trials of the policy")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names, counts = zip(*histogram(rates), strict=True)
    figure, axes = plt.subplots(figsize=(7, 3.2))
    colours = ["#bbbbbb", *["#1f77b4"] * (len(names) - 2), "#bbbbbb"]
    bars = axes.bar(range(len(names)), counts, color=colours)
    axes.bar_label(bars, [str(count) if count else "" for count in counts], fontsize=8)
    axes.set_xticks(
        range(len(names)), ["0\nnever", *(n.replace("–", " –\n") for n in names[1:-1]), "1\nalways"], fontsize=8
    )
    axes.set_xlabel("share of trials that solved the task")
    axes.set_ylabel("tasks")
    useful = sum(counts[1:-1])
    axes.set_title(
        f"{useful} of {len(rates)} measured tasks are solved sometimes, and so give mixed groups", fontsize=10
    )
    axes.margins(y=0.15)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
