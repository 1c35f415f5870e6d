"""What a process must set before it imports Prefect, Ray or torch: where they keep things, what they must not send."""

import os
from pathlib import Path

from deployments import guardian
from deployments.services import read_services

ROOT_VARIABLE = "TESTGRAD_ROOT"


def default_root() -> Path:
    """Where runs, models and pools are kept: `TESTGRAD_ROOT`, or `runs` in the working directory."""
    return Path(os.environ.get(ROOT_VARIABLE, "runs")).resolve()


def prepare(root: Path, quiet: bool = True) -> None:
    """Point Prefect at the servers of `testgrad up` if they run, else at a private one that ends with the process."""
    root.mkdir(parents=True, exist_ok=True)
    guardian.start()
    defaults = {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        # progress is ours to show, and bars of libraries would tear the table
        "TQDM_DISABLE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DS_ACCELERATOR": "cpu" if not Path("/dev/nvidiactl").exists() else "",
        # threads that spin on contended cores cost up to sixteen times the time
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "PREFECT_HOME": str(root / "prefect"),
        "TORCHINDUCTOR_CACHE_DIR": str(root / "cache" / "torchinductor"),
        "PREFECT_MEMO_STORE_PATH": str(root / "prefect" / "memo_store.toml"),
        # results are found again by the next process, wherever it is started
        "PREFECT_LOCAL_STORAGE_PATH": str(root / "prefect" / "results"),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    }
    if quiet:
        defaults |= {"PREFECT_LOGGING_LEVEL": "CRITICAL"}
    services = read_services(root)
    if services is not None:
        defaults["PREFECT_API_URL"] = services.prefect_api_url
    for name, value in defaults.items():
        if value:
            os.environ.setdefault(name, value)


def tracking_uri(root: Path) -> str:
    """Where MLflow keeps runs: `MLFLOW_TRACKING_URI`, the server of `testgrad up`, or a file under `root`."""
    services = read_services(root)
    if os.environ.get("MLFLOW_TRACKING_URI"):
        return os.environ["MLFLOW_TRACKING_URI"]
    return services.mlflow_url if services is not None else f"sqlite:///{root.resolve()}/mlflow.db"
