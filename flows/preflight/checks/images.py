"""Where trials run: whether the backend isolates here, and has the image that they need."""

from collections.abc import Iterator
from pathlib import Path

from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, Level, fatal, ok, unset, warn
from flows.preflight.registry import Cost, check
from harness.pool.environment import UnfitTask, sandbox_for
from harness.pool.task import Task, TaskError
from harness.sandbox import SandboxError, require_isolation
from harness.sandbox.docker_config import BASE_IMAGE, hosts_of
from tasks.draw import spread

_SAMPLED = 64
_SKEW = 5.0
"""Seconds by which an engine's clock may differ: trials are dated by one and limited by the other."""


@check("backend")
def backend(facts: Facts) -> Iterator[Finding]:
    """What the configuration alone tells of image and place."""
    sandbox = facts.config.sandbox
    if not facts.is_set("sandbox.backend"):
        yield unset("sandbox.backend", sandbox.backend, "trials run there", "set it, or profiles.backend")
    if sandbox.backend == "kubernetes":
        yield from _kubernetes(facts)
    elif sandbox.backend == "docker":
        yield from _docker(facts)
    else:
        yield ok("sandbox.backend", sandbox.backend, "confines on this machine, and needs no image")
    yield from _task_images(facts)


def _kubernetes(facts: Facts) -> Iterator[Finding]:
    kube = facts.config.sandbox.kubernetes
    if kube.kubeconfig is not None and not kube.kubeconfig.is_file():
        yield fatal("sandbox.kubernetes.kubeconfig", kube.kubeconfig, "there is no such file", "correct the path")
    bare = "/" not in kube.image
    if bare and kube.image_pull_policy == "Always":
        yield fatal(
            "sandbox.kubernetes.image",
            kube.image,
            "names no registry, and image_pull_policy Always pulls it from one",
            "push it to a registry and give its whole name, or set IfNotPresent",
        )
    elif bare:
        yield warn(
            "sandbox.kubernetes.image",
            kube.image,
            "names no registry: a node that lacks it cannot have it",
            "push it to a registry and give its whole name, or load it on every node",
        )
    else:
        yield ok("sandbox.kubernetes.image", kube.image, f"is pulled by the nodes ({kube.image_pull_policy})")
    life, longest = kube.life_seconds, facts.config.scaffold.agent_timeout
    if longest is not None and longest + facts.config.budgets.setup_sec > life:
        yield ok("sandbox.kubernetes.life_seconds", life, "is raised for each pod to what its trial may take")


def _docker(facts: Facts) -> Iterator[Finding]:
    docker = facts.config.sandbox.docker
    if docker.image == BASE_IMAGE:
        yield ok("sandbox.docker.image", docker.image, "is the base image, made by deployments.docker.build_base")
    elif "/" not in docker.image and docker.pull != "never":
        yield warn(
            "sandbox.docker.image",
            docker.image,
            "names no registry: an engine that lacks it asks Docker Hub",
            "give its whole name, or set sandbox.docker.pull: never",
        )
    else:
        yield ok("sandbox.docker.image", docker.image, f"is pulled when it is {docker.pull}")
    for host in hosts_of(docker):
        if host.tls is not None and (
            absent := [n for n in ("ca.pem", "cert.pem", "key.pem") if not (host.tls / n).is_file()]
        ):
            yield fatal("sandbox.docker.hosts", host.url, f"{host.tls} lacks {', '.join(absent)}", "put them there")
        socket = Path(host.url.removeprefix("unix://"))
        if host.local and not socket.exists():
            yield fatal(
                "sandbox.docker.hosts", host.url, "there is no such socket", "start the engine, or correct the path"
            )
    slots = sum(host.slots for host in hosts_of(docker))
    if slots < facts.config.rollout.concurrency:
        yield warn(
            "rollout.concurrency",
            facts.config.rollout.concurrency,
            f"is more than the {slots} slots of all engines: trials wait for one, on their own time",
            "raise sandbox.docker.hosts' slots, or lower it",
        )


def _task_images(facts: Facts) -> Iterator[Finding]:
    """Whether sampled tasks can run in the images that they name."""
    tasks = _sampled(facts)
    images = _images_of(tasks)
    if not images:
        return
    sandbox = facts.config.sandbox
    shown = ", ".join(images[:3]) + (f" and {len(images) - 3} more" if len(images) > 3 else "")
    if not sandbox.task_images:
        yield warn(
            "sandbox.task_images",
            False,
            f"{len(images)} images are named by sampled tasks ({shown}) and are not used: what is installed in those "
            "may be missing",
            "prove the tasks without them: testgrad pool admit INDEX -o ADMITTED --config THIS_FILE",
        )
        return
    for task in tasks:
        try:
            sandbox_for(task, sandbox)
        except UnfitTask as error:
            mend = "set sandbox.backend: docker, or leave such tasks out (testgrad pool filter)"
            yield fatal("sandbox.backend", sandbox.backend, str(error), mend)
            return
    yield ok("sandbox.backend", sandbox.backend, f"runs sampled tasks in the {len(images)} images that they name")


def _sampled(facts: Facts) -> list[Task]:
    tasks = []
    for row in spread(facts.train_pool.rows, _SAMPLED):
        try:
            tasks.append(Task.load(row.task_path))
        except TaskError:  # told by the check of the indexes
            continue
    return tasks


def _images_of(tasks: list[Task]) -> list[str]:
    return sorted({task.environment.image for task in tasks if task.environment.image})


@check("isolation", Cost.PROBE)
def isolation(facts: Facts) -> Iterator[Finding]:
    """A command is run confined, on every engine that there is."""
    sandbox = facts.config.sandbox
    told = list(_missing_images(facts)) if sandbox.backend == "docker" else []
    yield from told
    if any(finding.level is Level.FATAL or finding.field == "sandbox.docker.image" for finding in told):
        return  # a probe would pull the image, or say the same again
    try:
        require_isolation(sandbox)
    except SandboxError as error:
        yield fatal("sandbox.backend", sandbox.backend, str(error), "mend it, or choose another backend")
    else:
        yield ok("sandbox.backend", sandbox.backend, "isolates, as a probe found")


def _missing_images(facts: Facts) -> Iterator[Finding]:
    """Engines without the image, which the probe would have to pull; and those whose clock is another."""
    from harness.sandbox.docker_engine import Engine

    docker = facts.config.sandbox.docker
    for host in hosts_of(docker):
        try:
            engine = Engine(host)
            skew, found = engine.info.clock, engine.image(docker.image)
        except SandboxError as error:
            yield fatal("sandbox.docker.hosts", host.url, str(error), "start the engine, or leave it out")
            continue
        if abs(skew) > _SKEW:
            yield warn("sandbox.docker.hosts", host.url, f"its clock is {skew:+.0f} s from ours", "set both by NTP")
        if found is None and (docker.image == BASE_IMAGE or docker.pull == "never"):
            mend = (
                "make it there: python -m deployments.docker.build_base"
                if docker.image == BASE_IMAGE
                else "pull it there"
            )
            yield fatal("sandbox.docker.image", docker.image, f"is not on {host.url}, and is not pulled", mend)
        elif found is None:
            yield warn(
                "sandbox.docker.image",
                docker.image,
                f"is not on {host.url} yet: the first trials wait for its pull",
                f"docker -H {host.url} pull {docker.image}",
            )
        wanted = _images_of(_sampled(facts)) if facts.config.sandbox.task_images else []
        if absent := [image for image in wanted if engine.image(image) is None]:
            say, mend = (fatal, "pull them there") if docker.pull == "never" else (warn, "pull them there before")
            why = f"{len(absent)} of {len(wanted)} images of sampled tasks are not on {host.url}, such as {absent[0]}"
            yield say("sandbox.docker.pull", docker.pull, why, mend)
