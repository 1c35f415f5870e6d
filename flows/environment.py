"""What a process must set before it imports Prefect, Ray or torch: where they keep things, what they must not send."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from deployments import guardian
from deployments.process_environment import ROOT_VARIABLE, process_environment
from deployments.services import read_services


class TrackingError(ValueError):
    """An address of MLflow that must not be used as it is."""


def default_root() -> Path:
    """Where runs, models and pools are kept: `TESTGRAD_ROOT`, or `runs` in the working directory."""
    return Path(os.environ.get(ROOT_VARIABLE, "runs")).resolve()


def prepare(root: Path, quiet: bool = True) -> None:
    """Point Prefect at the servers of `testgrad up` if they run, else at a private one that ends with the process."""
    root.mkdir(parents=True, exist_ok=True)
    guardian.start()
    defaults = process_environment(root)
    if quiet:
        defaults |= {"PREFECT_LOGGING_LEVEL": "CRITICAL"}
    services = read_services(root)
    if services is not None:
        defaults["PREFECT_API_URL"] = services.prefect_api_url
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def tracking_uri(root: Path) -> str:
    """Where MLflow keeps runs: `MLFLOW_TRACKING_URI`, the server of `testgrad up`, or a file under `root`.

    Raises:
        TrackingError: the variable's address holds a password.
    """
    named = os.environ.get("MLFLOW_TRACKING_URI")
    if named:
        if urlsplit(named).password:
            raise TrackingError(
                "MLFLOW_TRACKING_URI holds a password, and the address is stored with every flow run and shown on "
                "pages; take it out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD. A database goes "
                "behind an MLflow server"
            )
        return named
    services = read_services(root)
    return services.mlflow_url if services is not None else f"sqlite:///{root.resolve()}/mlflow.db"
