"""Pools of Docker and Kubernetes: what the documentation has one write comes out as a job that has what it needs."""

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import support.quiet_prefect  # noqa: F401
import yaml
from kubernetes_validate.utils import all_versions
from prefect.utilities.templating import apply_values, find_placeholders

PROJECT = Path(__file__).parent.parent.parent
POOLS = {"testgrad-docker": "docker", "testgrad-k8s": "kubernetes"}


def _template(kind: str) -> dict[str, Any]:
    return dict(json.loads((PROJECT / "deployments" / "pools" / f"{kind}.json").read_text()))


def _documented() -> dict[str, dict[str, Any]]:
    """The variants in docs/operations.md, by their pool."""
    blocks = re.findall(r"```yaml\n(.*?)```", (PROJECT / "docs" / "operations.md").read_text(), re.DOTALL)
    variants = [yaml.safe_load(block) for block in blocks if "work_pool:" in block]
    return {variant["work_pool"]["name"]: variant for variant in variants}


def _job(kind: str, variables: dict[str, Any]) -> dict[str, Any]:
    """The job as Prefect makes it of a pool's template, a deployment's variables and what a worker adds."""
    template = _template(kind)
    properties = template["variables"]["properties"]
    values = {name: field["default"] for name, field in properties.items() if "default" in field} | variables
    own = {"name": "quick-lemur", "command": "prefect flow-run execute", "labels": {"prefect.io/flow-run-name": "a"}}
    return dict(apply_values(template["job_configuration"], values | own))


@pytest.mark.parametrize("kind", POOLS.values())
def test_a_template_asks_for_what_it_uses(kind: str) -> None:
    template = _template(kind)
    used = {placeholder.name for placeholder in find_placeholders(template["job_configuration"])}
    assert used == set(template["variables"]["properties"])


@pytest.mark.parametrize("pool", POOLS)
def test_the_documented_variables_exist_and_suffice(pool: str) -> None:
    """Prefect says nothing of one that does not exist, and does without it."""
    given = _documented()[pool]["work_pool"]["job_variables"]
    variables = _template(POOLS[pool])["variables"]
    assert set(variables["required"]) <= set(given) <= set(variables["properties"])


def test_a_container_has_the_run_root_and_shared_memory() -> None:
    job = _job("docker", _documented()["testgrad-docker"]["work_pool"]["job_variables"])
    assert job["container_create_kwargs"] == {"shm_size": "8g"} and job["privileged"] is True
    assert job["volumes"] == ["/shared/runs:/runs"] and job["env"]["TESTGRAD_ROOT"] == "/runs"


def test_a_pod_has_the_run_root_and_shared_memory() -> None:
    job = _job("kubernetes", _documented()["testgrad-k8s"]["work_pool"]["job_variables"])
    manifest = job["job_manifest"]
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    # the worker's part, as it does it
    container["env"] = [{"name": name, "value": value} for name, value in container["env"].items()]
    container["args"] = container["args"].split()
    assert kubernetes_validate.validate(manifest, all_versions()[-1], strict=True)
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {"runs": job["env"]["TESTGRAD_ROOT"], "shared-memory": "/dev/shm"}
    assert {volume["name"] for volume in pod["volumes"]} == set(mounted)
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "testgrad-runs"}
