"""An image like those of SWE-bench: a repository with its history in /testbed, and its environment in /opt."""

import io
import tarfile
from pathlib import Path

import docker

from harness.sandbox.docker_config import BASE_IMAGE

PYTHON = "/opt/miniconda3/envs/testbed/bin/python"

_DOCKERFILE = f"""\
FROM {BASE_IMAGE}
COPY testbed /testbed
RUN python3 -m venv --without-pip /opt/miniconda3/envs/testbed \\
 && site=$(echo /opt/miniconda3/envs/testbed/lib/python3*/site-packages) \\
 && mkdir $site/mathy-1.0.dist-info && echo /testbed/plugins > $site/__editable__.mathy.pth \\
 && echo /testbed >> $site/__editable__.mathy.pth \\
 && echo '{{"dir_info": {{"editable": true}}}}' > $site/mathy-1.0.dist-info/direct_url.json \\
 && echo 'ANSWER = 42' > $site/needed.py
WORKDIR /testbed
"""


def build_testbed(url: str, name: str, clone: Path) -> None:
    """Make the image `name` on the engine at `url`, with all of `clone` as its repository.

    The environment has the module `needed`, which no other Python of the image has, and an editable install of what
    lies in /testbed, and in its folder plugins.
    """
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        tar.add(clone, "testbed")
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(_DOCKERFILE)
        tar.addfile(info, io.BytesIO(_DOCKERFILE.encode()))
    context.seek(0)
    client = docker.APIClient(base_url=url, timeout=300)
    steps = client.build(fileobj=context, custom_context=True, tag=name, rm=True, network_mode="none", decode=True)
    log = [step.get("stream") or step.get("error") or "" for step in steps]
    assert any("Successfully tagged" in line for line in log), "".join(log)
