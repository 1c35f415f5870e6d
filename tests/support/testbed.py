"""Images like those of public sets: a repository with its history in /testbed, and an environment of its own."""

import io
import tarfile
from pathlib import Path

import docker

from harness.sandbox.docker_config import BASE_IMAGE

PYTHON = "/opt/miniconda3/envs/testbed/bin/python"

# As SWE-bench has it: in /opt.
CONDA = f"""\
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

# As R2E-Gym has it: in the repository, by an interpreter that only root reaches, and the tests in a folder beside it.
VENV = f"""\
FROM {BASE_IMAGE}
COPY testbed /testbed
RUN base=$(python3 -c 'import sys; print(sys.base_prefix)') && mkdir -p /secluded/uv/bin /secluded/uv/lib /r2e_tests \\
 && cp -a $base/bin/python3* /secluded/uv/bin && cp -a $base/lib/python3.* /secluded/uv/lib && chmod 700 /secluded \\
 && /secluded/uv/bin/python3 -m venv --without-pip /testbed/.venv && echo 'SECRET' > /r2e_tests/test_1.py \\
 && echo 'ANSWER = 42' > $(echo /testbed/.venv/lib/python3*/site-packages)/needed.py
WORKDIR /testbed
"""


def build_testbed(url: str, name: str, clone: Path, dockerfile: str = CONDA) -> None:
    """Make the image `name` on the engine at `url`, with all of `clone` as its repository.

    Its environment has the module `needed`, which no other Python of the image has; that of `CONDA` has an editable
    install of what lies in /testbed, and in its folder plugins.
    """
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        tar.add(clone, "testbed")
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(dockerfile)
        tar.addfile(info, io.BytesIO(dockerfile.encode()))
    context.seek(0)
    client = docker.APIClient(base_url=url, timeout=300)
    steps = client.build(fileobj=context, custom_context=True, tag=name, rm=True, network_mode="none", decode=True)
    log = [step.get("stream") or step.get("error") or "" for step in steps]
    assert any("Successfully tagged" in line for line in log), "".join(log)
