"""What a single machine may have running: how each is started, and asked whether it answers."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deployments.process_environment import ROOT_VARIABLE, process_environment

HOST = "127.0.0.1"
POOL = "testgrad"
WORKER = "worker"
DATABASE_VARIABLE = "TESTGRAD_PREFECT_DATABASE"
"""Address of a PostgreSQL database for Prefect, postgresql+asyncpg://user:password@host/name; a file if unset."""
_EVERYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Place:
    """Where one is to run: `urls` are of those that it needs, and that are up."""

    root: Path
    host: str
    port: int
    urls: dict[str, str]

    @property
    def shown_host(self) -> str:
        """The host by which a browser reaches it."""
        return socket.gethostname() if self.host in _EVERYWHERE else self.host


@dataclass(frozen=True)
class Kind:
    """How one is started and asked whether it answers. `after` names those that it needs.

    One that is not `public` listens on loopback whatever is asked for.
    """

    title: str
    usual_port: int
    health: str
    command: Callable[[Place], list[str]]
    environment: Callable[[Place], dict[str, str]]
    after: tuple[str, ...] = ()
    public: bool = True


def _prefect_command(place: Place) -> list[str]:
    return ["-m", "prefect", "server", "start", "--host", place.host, "--port", str(place.port)]


def _prefect_environment(place: Place) -> dict[str, str]:
    database = os.environ.get(DATABASE_VARIABLE)
    own = sorted({"localhost", HOST, place.shown_host, socket.getfqdn()})
    return {
        "PREFECT_HOME": str(place.root / "services" / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # The command's --port binds the socket; the page learns the API's address from these.
        "PREFECT_SERVER_API_HOST": place.host,
        "PREFECT_SERVER_API_PORT": str(place.port),
        "PREFECT_UI_API_URL": f"http://{place.shown_host}:{place.port}/api",
        # by default it obeys any page that a browser on this machine has open, and to obey is to run flows
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{host}:{place.port}" for host in own),
        # a step is a handful of task runs, but their events come in bursts: fewer, larger writes are kind to SQLite
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_READ_BATCH_SIZE": "100",
    } | ({"PREFECT_API_DATABASE_CONNECTION_URL": database} if database else {})


def _mlflow_command(place: Place) -> list[str]:
    # Runs write artifacts to the folder themselves, as they do without a server.
    store = [
        "--backend-store-uri",
        f"sqlite:///{place.root / 'mlflow.db'}",
        "--default-artifact-root",
        str(place.root / "mlartifacts"),
    ]
    names = [name for host in {"localhost", HOST, place.shown_host, socket.getfqdn()} for name in (host, f"{host}:*")]
    hosts = [] if place.host == HOST else ["--allowed-hosts", ",".join(sorted(names))]
    listening = ["--host", place.host, "--port", str(place.port), "--workers", "1"]
    return ["-m", "mlflow", "server", *listening, *hosts, *store, "--no-serve-artifacts"]


def _mlflow_environment(place: Place) -> dict[str, str]:
    return {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def _worker_command(place: Place) -> list[str]:
    pool = ["--pool", POOL, "--type", "process", "--name", socket.gethostname()]
    return ["-m", "prefect", "worker", "start", *pool, "--with-healthcheck"]


def _worker_environment(place: Place) -> dict[str, str]:
    """What flow runs start with: the worker hands on what it has."""
    return process_environment(place.root) | {
        "PREFECT_API_URL": f"{place.urls['prefect']}/api",
        # how long a run that was started from the page waits for its worker to look
        "PREFECT_WORKER_QUERY_SECONDS": "5",
        "PREFECT_WORKER_WEBSERVER_HOST": HOST,
        "PREFECT_WORKER_WEBSERVER_PORT": str(place.port),
        # by which the server notices that a flow run's process has died together with its worker
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        ROOT_VARIABLE: str(place.root),
    }


KINDS = {
    "prefect": Kind("Prefect", 4200, "/api/health", _prefect_command, _prefect_environment),
    "mlflow": Kind("MLflow", 5000, "/health", _mlflow_command, _mlflow_environment),
    WORKER: Kind("worker", 8080, "/health", _worker_command, _worker_environment, after=("prefect",), public=False),
}
