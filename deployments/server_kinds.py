"""The servers that a single machine may have: how each is started, and asked whether it answers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Kind:
    """How one of the servers is started and asked whether it answers."""

    title: str
    usual_port: int
    health: str
    command: Callable[[Path, int], list[str]]
    environment: Callable[[Path, int], dict[str, str]]


def _prefect_command(root: Path, port: int) -> list[str]:
    return ["-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]


def _prefect_environment(root: Path, port: int) -> dict[str, str]:
    return {
        "PREFECT_HOME": str(root / "services" / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # The command's --port binds the socket; the page learns the API's address from these.
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
    }


def _mlflow_command(root: Path, port: int) -> list[str]:
    # Runs write artifacts to the folder themselves, as they do without a server.
    store = [
        "--backend-store-uri",
        f"sqlite:///{root / 'mlflow.db'}",
        "--default-artifact-root",
        str(root / "mlartifacts"),
    ]
    return [
        "-m",
        "mlflow",
        "server",
        "--host",
        HOST,
        "--port",
        str(port),
        "--workers",
        "1",
        *store,
        "--no-serve-artifacts",
    ]


def _mlflow_environment(root: Path, port: int) -> dict[str, str]:
    return {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


KINDS = {
    "prefect": Kind("Prefect", 4200, "/api/health", _prefect_command, _prefect_environment),
    "mlflow": Kind("MLflow", 5000, "/health", _mlflow_command, _mlflow_environment),
}
