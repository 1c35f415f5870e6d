"""How a bench speaks: progress on stderr, a table on stdout, one JSON object as the last line."""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table


def arguments(description: str, **choices: Sequence[str]) -> argparse.Namespace:
    """The options that every bench takes, and those of this one: what each may be, the first of them by default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a short look; the figures are not the ones to report")
    parser.add_argument("--root", type=Path, help="keep runs here instead of a temporary folder")
    for name, values in choices.items():
        parser.add_argument(f"--{name}", choices=values, default=values[0], help="by default %(default)s")
    return parser.parse_args()


def say(text: str) -> None:
    """Progress, for people who wait."""
    print(text, file=sys.stderr, flush=True)


def report(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], figures: Mapping[str, float]) -> None:
    """Print the table and the JSON line."""
    table = Table(title=title, title_justify="left", header_style="bold", box=None)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row))
    Console().print(table)
    print(json.dumps(dict(figures)), flush=True)


@contextmanager
def scratch(root: Path | None) -> Iterator[Path]:
    """The folder for runs: `root`, or a temporary one that is removed."""
    if root is not None:
        root.mkdir(parents=True, exist_ok=True)
        yield root.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="testgrad-bench-") as folder:
        yield Path(folder)
