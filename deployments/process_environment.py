"""What every process of ours must have in its environment before it imports Prefect, Ray or torch."""

from pathlib import Path

ROOT_VARIABLE = "TESTGRAD_ROOT"


def process_environment(root: Path) -> dict[str, str]:
    """Where Prefect and the caches keep things, and what the libraries must not do."""
    accelerator = {} if Path("/dev/nvidiactl").exists() else {"DS_ACCELERATOR": "cpu"}
    return accelerator | {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # a private server has no pages, so no page has a word to say to it
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "http://127.0.0.1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        # progress is ours to show, and bars of libraries would tear the table
        "TQDM_DISABLE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        # threads that spin on contended cores cost up to sixteen times the time
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        # joblib makes a semaphore when it is imported; a process that is killed just then leaves it
        "JOBLIB_MULTIPROCESSING": "0",
        "PREFECT_HOME": str(root / "prefect"),
        "TORCHINDUCTOR_CACHE_DIR": str(root / "cache" / "torchinductor"),
        "PREFECT_MEMO_STORE_PATH": str(root / "prefect" / "memo_store.toml"),
        # results are found again by the next process, wherever it is started
        "PREFECT_LOCAL_STORAGE_PATH": str(root / "prefect" / "results"),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    }
