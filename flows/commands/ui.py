"""`testgrad ui`: the pages of Prefect and MLflow, on a run when one is named."""

import os
import shutil
import webbrowser
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.text import Text

from flows.commands.errors import clear_errors
from flows.environment import default_root, prepare

console = Console()


class UiError(ValueError):
    """There is no server to look at, or no such run."""


def ui(
    root: Annotated[
        Path, typer.Option("--root", help="Where runs, models and pools are kept", default_factory=default_root)
    ],
    run: Annotated[str | None, typer.Argument(help="project/experiment: open its pages")] = None,
    browser: Annotated[bool, typer.Option(help="Open a browser where there is a display; else only print")] = True,
) -> None:
    """Open Prefect and MLflow in a browser, and print their addresses; on the pages of a run if one is named."""
    prepare(root)
    with clear_errors():
        pages = addresses(root, run)
        for title, address in pages.items():
            console.print(Text(f"{title:8} {address}"), soft_wrap=True)
        if browser and has_display():
            for address in pages.values():
                webbrowser.open(address)


def addresses(root: Path, run: str | None) -> dict[str, str]:
    """The pages, by title.

    Raises:
        UiError: no server is up, or there is no such run.
    """
    from deployments.services import read_services

    services = read_services(root)
    if services is None:
        raise UiError(f"no servers are up under {root}; start them with `testgrad up`")
    if run is None:
        return {"Prefect": services.prefect_ui_url, "MLflow": services.mlflow_url}
    if not (root / run / "config.json").is_file():
        raise UiError(f"there is no run {run} in {root}; name it as project/experiment")
    pages = {
        "Prefect": flow_run_page(services.prefect_ui_url, run) or f"{services.prefect_ui_url}/runs",
        "MLflow": mlflow_page(root, run, services.mlflow_url) or services.mlflow_url,
    }
    report = root / run / "report.html"
    return pages | ({"report": report.resolve().as_uri()} if report.is_file() else {})


def flow_run_page(server: str, run: str) -> str | None:
    """The page of the newest flow run that is called after the run, None if Prefect knows of none."""
    names = [f"{kind}-{run.replace('/', '-')}" for kind in ("train", "warm-start")]
    asked = {"flow_runs": {"name": {"any_": names}}, "sort": "EXPECTED_START_TIME_DESC", "limit": 1}
    with httpx.Client(trust_env=False, timeout=30) as client:
        answer = client.post(f"{server}/api/flow_runs/filter", json=asked)
    found = answer.json() if answer.status_code == 200 else []
    return f"{server}/runs/flow-run/{found[0]['id']}" if found else None


def mlflow_page(root: Path, run: str, server: str) -> str | None:
    """The run's page, None if MLflow does not know it."""
    from flows.regrade import open_finished
    from tasks.tracking import Tracker

    reference = open_finished(root, run).model_copy(update={"tracking_uri": server})
    tracker = Tracker.find(reference)
    return tracker.url if tracker is not None else None


def has_display() -> bool:
    """Whether a browser could be seen. Without a screen one in text would take the terminal."""
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(screen) and shutil.which("xdg-open") is not None
