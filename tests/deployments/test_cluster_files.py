"""Images, compose file and manifests: of the formats that they claim, and of one mind with the code and each other."""

import json
import re
import subprocess
from itertools import pairwise
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

import deployments
from deployments.server_kinds import POOL
from flows.configuration import load_run
from harness.sandbox.kubernetes_access import _NEEDED

FOLDER = Path(deployments.__file__).parent
PROJECT = FOLDER.parent
MANIFESTS = sorted((FOLDER / "kubernetes").glob("*.yaml"))
IMAGES = [FOLDER / "images" / f"Dockerfile.{kind}" for kind in ("gpu", "cpu")]
VERSIONS = ("1.28.0", "1.34.0")

RAY_CLUSTER = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
HEAD_GROUP = {"rayStartParams", "template"}
WORKER_GROUP = HEAD_GROUP | {"groupName", "replicas", "minReplicas", "maxReplicas"}
"""Fields of KubeRay's RayCluster (ray.io/v1) that are used; a misspelt one would be dropped without a word."""


def documents():
    return [manifest for path in MANIFESTS for manifest in yaml.safe_load_all(path.read_text())]


def named(kind):
    return {manifest["metadata"]["name"]: manifest for manifest in documents() if manifest["kind"] == kind}


def pods():
    """Every pod's spec with its namespace, those in templates of KubeRay too."""
    cluster = named("RayCluster")["testgrad"]["spec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    own = [m["spec"] for m in documents() if m["kind"] in ("Deployment", "StatefulSet")]
    return [holder["template"]["spec"] for holder in (*groups, *own)]


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_kubernetes(version):
    for manifest in documents():
        if manifest["kind"] != "RayCluster":
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_ray_cluster_is_kuberays_and_its_pods_are_kubernetes(version):
    cluster = named("RayCluster")["testgrad"]
    spec = cluster["spec"]
    assert cluster["apiVersion"] == "ray.io/v1" and set(spec) == RAY_CLUSTER
    assert set(spec["headGroupSpec"]) == HEAD_GROUP
    assert all(set(group) == WORKER_GROUP for group in spec["workerGroupSpecs"])
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        # KubeRay hands them to `ray start` as they are, and takes nothing but strings
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        template = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "pod"},
            "template": group["template"],
        }
        kubernetes_validate.validate(template, version, strict=True)
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_ray_is_the_one_of_the_image_and_asks_for_a_token():
    spec = named("RayCluster")["testgrad"]["spec"]
    pin = re.search(r"^ray\[default\]==(\S+)$", (PROJECT / "requirements" / "gpu.txt").read_text(), re.MULTILINE)
    assert spec["rayVersion"] == pin.group(1)
    assert spec["authOptions"] == {"mode": "token"}


def test_groups_offer_the_resources_by_which_roles_are_placed():
    groups = {group["groupName"]: group for group in named("RayCluster")["testgrad"]["spec"]["workerGroupSpecs"]}
    for role in ("train", "rollout"):
        # once for the shell that KubeRay runs, once for Ray
        assert json.loads(json.loads(groups[role]["rayStartParams"]["resources"])) == {f"{role}_node": 1}


def test_the_role_allows_what_the_sandbox_asks_for_and_no_more():
    rules = named("Role")["testgrad-sandboxes"]["rules"]
    allowed = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    needed = {("/".join(filter(None, (resource, sub))), verb) for resource, sub, verb in _NEEDED}
    assert allowed == needed | {("networkpolicies", "create"), ("networkpolicies", "get")}


def test_what_manifests_refer_to_is_there():
    claims, accounts, maps = (named(kind) for kind in ("PersistentVolumeClaim", "ServiceAccount", "ConfigMap"))
    for pod in pods():
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for volume in volumes.values():
            assert volume.get("persistentVolumeClaim", {}).get("claimName", "runs") in claims
            assert volume.get("configMap", {}).get("name", "testgrad-site") in maps
        own = {"data"} if not volumes else set()  # of a claim template
        for container in pod["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes.keys() | own
        assert pod.get("serviceAccountName", "testgrad-flows") in accounts
    for name, service in named("Service").items():
        labels = [
            m["spec"]["template"]["metadata"]["labels"]
            for m in documents()
            if m["kind"] in ("Deployment", "StatefulSet")
        ]
        assert service["spec"]["selector"] in labels, name


def test_pods_that_need_no_account_have_no_token():
    for pod in pods():
        assert "serviceAccountName" in pod or pod["automountServiceAccountToken"] is False


def test_the_site_file_configures_a_run(tmp_path):
    (tmp_path / "site.yaml").write_text(named("ConfigMap")["testgrad-site"]["data"]["site.yaml"])
    (tmp_path / "run.yaml").write_text("experiment: mine\n")
    config = load_run(tmp_path / "run.yaml", site=tmp_path / "site.yaml").config
    assert config.sandbox.kubernetes.namespace in named("Namespace")
    gpus = {}
    for group in named("RayCluster")["testgrad"]["spec"]["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        gpus[group["groupName"]] = group["replicas"] * int(limits.get("nvidia.com/gpu", 0))
    assert config.learner.ranks == gpus["train"]
    assert config.serving.replicas * config.serving.tensor_parallel == gpus["rollout"]


def instructions(image):
    text = re.sub(r"^#.*\n", "", image.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
def test_images_copy_what_exists_and_run_what_a_shell_reads(image):
    found = instructions(image)
    assert {word for word, _ in found} <= {
        "ARG",
        "FROM",
        "RUN",
        "WORKDIR",
        "COPY",
        "ENV",
        "VOLUME",
        "ENTRYPOINT",
        "CMD",
    }
    for word, rest in found:
        if word == "COPY":
            assert all((PROJECT / source).exists() for source in rest.split()[:-1]), rest
        elif word == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)
        elif word in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(part, str) for part in json.loads(rest))
    assert (image.parent / f"{image.name}.dockerignore").is_file(), "else .venv and runs would be sent along"


def test_the_gpu_images_toolkit_is_that_of_the_pinned_torch():
    told = re.search(r"CUDA (\d+\.\d+)", (PROJECT / "requirements" / "gpu.txt").read_text()).group(1)
    assert f"ARG CUDA={told}." in (FOLDER / "images" / "Dockerfile.gpu").read_text()


def test_compose_starts_services_in_an_order_that_exists_and_publishes_on_loopback():
    compose = yaml.safe_load((FOLDER / "compose" / "compose.yaml").read_text())
    services = compose["services"]
    for service in services.values():
        for needed, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"} and "healthcheck" in services[needed]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= compose["volumes"].keys()
    build = services["worker"]["build"]
    assert (FOLDER / "compose" / build["context"] / build["dockerfile"]).is_file()


def test_workers_serve_the_pool_that_is_deployed_to():
    compose = yaml.safe_load((FOLDER / "compose" / "compose.yaml").read_text())
    flows = named("RayCluster")["testgrad"]["spec"]["workerGroupSpecs"][-1]
    commands = [compose["services"]["worker"]["command"][-1], *flows["template"]["spec"]["containers"][0]["args"]]
    for command in commands:
        words = command.split()
        assert [second for first, second in pairwise(words) if first in ("--pool", "create")] == [POOL, POOL]
        subprocess.run(["bash", "-n", "-c", command], check=True)
