"""Enters the deployments of prefect.yaml, and what watches over their runs, in a Prefect server: `testgrad up`.

Run as a program it talks to the server of PREFECT_API_URL. Both are brought up to date when they are there already.
"""

import asyncio
import hashlib
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from deployments.process_environment import ROOT_VARIABLE, process_environment
from deployments.server_kinds import DATABASE_VARIABLE
from deployments.services import ServiceError, Services

if TYPE_CHECKING:
    from prefect.automations import Automation

PROJECT = Path(__file__).resolve().parent.parent
SILENCE = timedelta(seconds=90)
"""Without a heartbeat for so long, three of its intervals, a flow run's process is dead."""
WATCHER = "testgrad: a run without a heartbeat has crashed"
RESTARTER = "testgrad: a training run that has crashed goes on"


def deploy(root: Path, services: Services) -> bool:
    """Deploy all flows, unless that was done with this code for this server. Returns whether it was done now.

    Raises:
        ServiceError: a flow cannot be loaded, or the server refuses it.
    """
    root = root.resolve()
    record, state = root / "services" / "deployed", _state(root, services)
    if record.is_file() and record.read_text() == state:
        return False
    print("deploying the flows: half a minute", flush=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= process_environment(root)
    environment |= {"PREFECT_API_URL": services.prefect_api_url, ROOT_VARIABLE: str(root)}
    result = subprocess.run(
        [sys.executable, "-m", "deployments.deploy"],
        cwd=PROJECT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    log = root / "services" / "deploy.log"
    log.write_text(result.stdout + result.stderr)
    if result.returncode != 0:
        said = [line.strip() for line in (result.stderr or result.stdout).splitlines() if line.strip()]
        raise ServiceError(f"the flows cannot be deployed: {said[-1] if said else 'no word'} (log: {log})")
    record.write_text(state)
    return True


def _state(root: Path, services: Services) -> str:
    """What the deployments depend on: the code that makes their forms, and which server they are in."""
    digest = hashlib.sha256(f"{services.prefect_api_url} {root} {os.environ.get(DATABASE_VARIABLE)}".encode())
    database = root / "services" / "prefect" / "prefect.db"
    digest.update(str(database.stat().st_ino if database.is_file() else 0).encode())
    folders = ("flows", "tasks", "harness", "trainer", "deployments")
    files = [file for folder in folders for file in (PROJECT / folder).rglob("*") if file.suffix in (".py", ".yaml")]
    for file in sorted([*files, PROJECT / "prefect.yaml"]):
        digest.update(f"{file.relative_to(PROJECT)} {file.stat().st_size} {file.stat().st_mtime_ns}\n".encode())
    return digest.hexdigest()


def main() -> None:
    """Deploy, and enter the automations."""
    subprocess.run([sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"], check=True)
    asyncio.run(_automate())


async def _automate() -> None:
    from prefect.automations import Automation
    from prefect.client.orchestration import get_client

    async with get_client() as client:
        restart = await client.read_deployment_by_name("restart/restart")
    for automation in (_watcher(), _restarter(restart.id)):
        try:
            automation.id = (await Automation.aread(name=automation.name)).id
        except ValueError:
            await automation.acreate()
        else:
            await automation.aupdate()


def _watcher() -> "Automation":
    """Has the server mark runs as crashed whose process died together with its worker: nobody else would tell it."""
    from prefect.automations import Automation
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    ends = ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended")
    beat = "prefect.flow-run.heartbeat"
    return Automation(
        name=WATCHER,
        trigger=EventTrigger(
            after={beat},
            expect={beat, *(f"prefect.flow-run.{end}" for end in ends)},
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=SILENCE,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"no heartbeat for {SILENCE.seconds} s: its process has died; retry it, or start it again",
            )
        ],
    )


def _restarter(restart: UUID) -> "Automation":
    """Has the deployment `restart` look at each run of `train` that has crashed."""
    from prefect.automations import Automation
    from prefect.events.actions import RunDeployment
    from prefect.events.schemas.automations import EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    return Automation(
        name=RESTARTER,
        trigger=EventTrigger(
            expect={"prefect.flow-run.Crashed"},
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=ResourceSpecification(
                {"prefect.resource.role": "deployment", "prefect.resource.name": "train"}
            ),
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[
            RunDeployment(
                deployment_id=restart,
                parameters={"crashed": {"__prefect_kind": "jinja", "template": "{{ flow_run.id }}"}},
            )
        ],
    )


if __name__ == "__main__":
    main()
