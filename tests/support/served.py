"""What tests ask of the servers of `testgrad up`."""

import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
from support.chrome import Page
from support.postgres import postgres

from deployments.server_kinds import DATABASE_VARIABLE
from deployments.services import Services

DOCS = Path(__file__).parent.parent.parent / "docs"
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@contextmanager
def prefect_database() -> Iterator[str | None]:
    """Prefect's database for servers that are started within: a file, or with TESTGRAD_TEST_POSTGRESQL=1 a private
    PostgreSQL, whose address this is."""
    if not os.environ.get("TESTGRAD_TEST_POSTGRESQL"):
        yield None
        return
    with postgres() as address, patch.dict(os.environ, {DATABASE_VARIABLE: address}):
        yield address


def get(url: str) -> bytes:
    """A page of a server on this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=30) as answer:
        assert answer.status == 200
        return bytes(answer.read())


def ask(services: Services, path: str, **body: Any) -> Any:
    """What Prefect's API answers."""
    answer = httpx.post(f"{services.prefect_api_url}/{path}", json=body, trust_env=False, timeout=30)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


def deployment_id(services: Services, name: str) -> str:
    (found,) = ask(services, "deployments/filter", deployments={"name": {"any_": [name]}})
    return str(found["id"])


def start(services: Services, deployment: str, **parameters: Any) -> str:
    """Have a deployment run. Returns the flow run's id."""
    path = f"deployments/{deployment_id(services, deployment)}/create_flow_run"
    return str(ask(services, path, parameters=parameters)["id"])


def flow_run(services: Services, run: str) -> dict[str, Any]:
    """A flow run by its id."""
    (found,) = ask(services, "flow_runs/filter", flow_runs={"id": {"any_": [run]}})
    return dict(found)


def until_ended(services: Services, run: str) -> dict[str, Any]:
    """A flow run in its final state."""

    def look() -> dict[str, Any] | None:
        found = flow_run(services, run)
        return found if found["state_type"] in ENDED else None

    return dict(until(f"the end of {run}", look))


def runs_of(services: Services, flow: str) -> list[dict[str, Any]]:
    """The runs of a flow, the newest first."""
    filters = {"flows": {"name": {"any_": [flow]}}, "sort": "EXPECTED_START_TIME_DESC"}
    return list(ask(services, "flow_runs/filter", **filters))


def submit(page: Page, services: Services, flow: str) -> None:
    """Press Submit in a run form, again if the page tells that the server refused, as one with much to do may."""
    known = {run["id"] for run in runs_of(services, flow)}
    page.click("Submit")

    def made() -> bool:
        if any(run["id"] not in known and not run["auto_scheduled"] for run in runs_of(services, flow)):
            return True
        if "something went wrong" in str(page.run("document.body.innerText")).lower():
            page.click("Close")
            page.click("Submit")
        return False

    until(f"a run of {flow}", made, 120)


def until(what: str, look: Callable[[], Any], patience: float = 900.0) -> Any:
    """What `look` finds in the end."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.5)
    raise AssertionError(f"never came: {what}")


def picture(page: Page, name: str) -> None:
    """The page as it is, for docs/, if pictures are asked for."""
    if os.environ.get("TESTGRAD_SCREENSHOTS"):
        page.settle(2.0)
        page.screenshot(DOCS / name)
