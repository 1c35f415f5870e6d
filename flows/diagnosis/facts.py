"""What `testgrad status` and the first step's verdict know of a run, read from its journal; nothing in it is believed.

What cannot be read is told in `RunFacts.notes`. Only the ends of a long run are read: its first and its last steps.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flows.diagnosis.process import END, End, Process, read_end, read_process
from tasks.draw import read_draws
from tasks.journal import ASKED, Journal, JournalError, eval_label, step_label
from tasks.lease import NAME as LEASE
from tasks.trial_table import TABLE, TRIAL_SCHEMA, read_object, read_trial_folders
from trainer.learner.checkpoint import MARKER

EARLY, RECENT = 10, 30
"""Steps at the beginning and at the end of a run whose records are read."""

_STEP = re.compile(r"step_(\d{6})")

Metrics = Mapping[str, float]


@dataclass
class RunFacts:
    """A run. `metrics` are by step; `recorded` are all steps that have a record, whether it could be read or not."""

    name: str
    journal: Journal
    config: Mapping[str, Any] = field(default_factory=dict)
    recorded: Sequence[int] = ()
    metrics: Mapping[int, Metrics] = field(default_factory=dict)
    process: Process | None = None
    end: End | None = None
    notes: list[str] = field(default_factory=list)
    now: float = field(default_factory=time.time)

    @classmethod
    def read(cls, root: Path, name: str) -> "RunFacts":
        """The run `name` in `root`. A folder without anything in it is a run of which nothing is known."""
        facts = cls(name, Journal(root / name))
        stored = facts.read_json(facts.journal.root / "config.json")
        config = stored.get("config") if stored else None
        facts.config = config if isinstance(config, dict) else {}
        facts.recorded = _recorded(facts.journal)
        chosen = sorted({*facts.recorded[:EARLY], *facts.recorded[-RECENT:]})
        facts.metrics = {step: m for step in chosen if (m := facts.record(step)) is not None}
        try:
            facts.process = read_process(facts.journal.root)
        except (OSError, JournalError, ValueError, TypeError) as error:
            facts.notes.append(f"{LEASE} cannot be read ({type(error).__name__}): who works on the run is not known")
        try:
            facts.end = read_end(facts.journal.root)
        except (OSError, ValueError, KeyError, TypeError) as error:
            facts.notes.append(f"{END} cannot be read ({type(error).__name__}): how it ended last is not known")
        return facts

    def setting(self, key: str, default: Any = None) -> Any:
        """The setting at a dotted key, `default` where the stored configuration has none."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return default if value is None else value

    @property
    def total_steps(self) -> int | None:
        """Steps of the schedule; None for what has none, though its settings may be those of a run."""
        if (self.journal.root / ASKED).is_file():
            return None
        total = self.setting("schedule.total_steps")
        return total if isinstance(total, int) else None

    @property
    def newest(self) -> int:
        """The newest recorded step, 0 if there is none."""
        return max(self.recorded, default=0)

    def record(self, step: int) -> Metrics | None:
        """The metrics of a step, None where there are none that can be read."""
        record = self.read_json(self.journal.stage_dir(step_label(step)) / "record.json")
        metrics = record.get("metrics") if record is not None else None
        return {str(k): _float(v) for k, v in metrics.items()} if isinstance(metrics, dict) else None

    def series(self, metric: str, steps: int | None = None) -> list[tuple[int, float]]:
        """(step, value) of the newest `steps` steps that have been read and know it; finite values only."""
        known = [
            (step, m[metric]) for step, m in sorted(self.metrics.items()) if math.isfinite(m.get(metric, math.nan))
        ]
        return known if steps is None else known[-steps:]

    def last(self, metric: str) -> float | None:
        """The value in the newest record that could be read; None if it is not there, or not finite."""
        if not self.metrics:
            return None
        value = self.metrics[max(self.metrics)].get(metric, math.nan)
        return value if math.isfinite(value) else None

    @cached_property
    def evaluations(self) -> dict[int, dict[str, Any]]:
        """Records of evaluations by step."""
        steps = _numbers(self.journal.root / "evals")
        records = {step: self.read_json(self.journal.stage_dir(eval_label(step)) / "record.json") for step in steps}
        return {step: record for step, record in records.items() if record is not None}

    def trials(self, label: str) -> pa.Table:
        """The trials of a step or an evaluation that have ended, in `TRIAL_SCHEMA`."""
        try:
            return pq.ParquetFile(self.journal.stage_dir(label) / TABLE).read(columns=TRIAL_SCHEMA.names)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            self.notes.append(f"{label}: {TABLE} is damaged ({type(error).__name__}); its trials were read one by one")
        try:
            table, problems = read_trial_folders(self.journal.trials_dir(label))
        except OSError as error:
            self.notes.append(f"{label}: its trials cannot be read ({type(error).__name__}: {error})")
            return TRIAL_SCHEMA.empty_table()
        if problems:
            self.notes.append(f"{label}: {len(problems)} trials are damaged and left out; the first: {problems[0]}")
        return table

    def planned(self, label: str) -> int | None:
        """Trials that a step or an evaluation asks for, None where the journal does not say."""
        try:
            return sum(group.attempts for draw in read_draws(self.journal.stage_dir(label)) for group in draw)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            self.notes.append(f"{label}: its groups cannot be read ({type(error).__name__})")
            return None

    def has(self, label: str, name: str) -> bool:
        """Whether a stage has left this file."""
        return (self.journal.stage_dir(label) / name).is_file()

    def has_checkpoint(self, step: int) -> bool:
        return (self.journal.checkpoints / f"global_step_{step}" / MARKER).is_file()

    def read_json(self, path: Path) -> dict[str, Any] | None:
        """The object in a file of the journal, None if there is none that can be read."""
        try:
            return read_object(str(path))
        except (OSError, ValueError, RecursionError) as error:
            shown = path.relative_to(self.journal.root)
            self.notes.append(f"{shown} cannot be read ({type(error).__name__}: {error})")
            return None

    @cached_property
    def changed_at(self) -> float | None:
        """When anything of the run was written last, by the clock of its file system; None if nothing was.

        Looked at are the newest step and evaluation, their trials, checkpoints and logs.
        """
        root = self.journal.root
        newest = max([*_numbers(root / "steps"), *_numbers(root / "trials")], default=0)
        scored = max(_numbers(root / "evals"), default=None)
        labels = [step_label(newest)] + ([eval_label(scored)] if scored is not None else [])
        folders = [root / "logs", root / "checkpoints"]
        for label in labels:
            folders += [self.journal.stage_dir(label), self.journal.trials_dir(label)]
        times = [time_ for folder in (*folders, root / END) for time_ in times_of(folder, deep=folder.is_dir())]
        trials = [self.journal.trials_dir(label) for label in labels]
        times += [time_ for folder in trials for inner in _folders(folder) for time_ in times_of(inner, deep=False)]
        return max(times, default=None)


def known_runs(root: Path) -> list[str]:
    """Names of the runs in `root`, as project/experiment: folders with steps, a lease, or a run's config.json."""
    found = {path.parent for pattern in ("*/*/steps", f"*/*/{LEASE}") for path in root.glob(pattern)}
    found |= {path.parent for path in root.glob("*/*/config.json") if _is_run(path)}
    return sorted(f"{folder.parent.name}/{folder.name}" for folder in found if not folder.is_symlink())


def _is_run(path: Path) -> bool:
    """Whether a config.json is a run's: models have files of that name too."""
    try:
        return "identity" in (read_object(str(path)) or {})
    except (OSError, ValueError, RecursionError):
        return False


def counted(table: pa.Table, column: str) -> Counter[str]:
    """How often each value of a text column occurs; None is no value."""
    return Counter(value for value in table[column].to_pylist() if value is not None)


def _recorded(journal: Journal) -> list[int]:
    try:
        return journal.finished_steps()
    except OSError:
        return []


def _numbers(folder: Path) -> list[int]:
    """Steps that have a folder in `folder`; labels of evaluations are passed over."""
    return sorted(int(match.group(1)) for path in _folders(folder) if (match := _STEP.fullmatch(path.name)))


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []


def times_of(folder: Path, deep: bool = True) -> list[float]:
    """When a folder and what lies in it were written; links are not followed."""
    times: list[float] = []
    try:
        paths = [folder, *(folder.iterdir() if deep else ())]
    except OSError:
        return []
    for path in paths:
        try:
            times.append(path.lstat().st_mtime)
        except OSError:  # removed meanwhile
            continue
    return times


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
