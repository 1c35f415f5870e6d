"""The Slurm script: what it asks for, and a run of it on this machine, whose Slurm is two small programs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import deployments

SCRIPT = Path(deployments.__file__).parent / "slurm" / "testgrad.sbatch"
KNOWN = {
    "job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "mem", "exclusive", "time", "output",
    "signal",
}  # fmt: skip

SRUN = """#!/bin/bash
while [[ ${1:-} == --* ]]; do
    [[ $1 == --nodelist=* && -n ${ONE_AT_A_TIME:-} ]] && echo "$1" >>"$ONE_AT_A_TIME"
    shift
done
exec "$@"
"""
RUN = """#!/bin/bash
python - "$@" <<'PYTHON'
import os, sys, ray
ray.init(log_to_driver=False)
print("RAN", *sys.argv[1:], "NODES", sum(node["Alive"] for node in ray.nodes()), "MODE", os.environ["RAY_AUTH_MODE"])
PYTHON
exit 7
"""


def directives():
    lines = SCRIPT.read_text().splitlines()
    found = dict(
        re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line).groups() for line in lines if "SBATCH" in line[:9]
    )
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert max(i for i, line in enumerate(lines) if line.startswith("#SBATCH")) < first_command, (
        "sbatch reads no further"
    )
    return found


def test_bash_reads_it():
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


def test_it_asks_slurm_for_one_task_on_each_whole_node():
    asked = directives()
    assert set(asked) <= KNOWN, "a misspelt directive is an error at submission"
    assert asked["ntasks-per-node"] == "1" and "exclusive" in asked
    assert re.fullmatch(r"\d\d:\d\d:\d\d", asked["time"])
    assert re.fullmatch(r"B:TERM@\d+", asked["signal"]), "the script itself must be told, not its tasks"


def test_every_variable_of_slurms_is_one_that_a_batch_script_has():
    used = set(re.findall(r"SLURM_\w+", SCRIPT.read_text()))
    assert used <= {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_SUBMIT_DIR", "SLURM_CPUS_PER_TASK"}


@pytest.mark.skipif(
    not os.environ.get("TESTGRAD_ALL_DEPLOYMENTS"), reason="TESTGRAD_ALL_DEPLOYMENTS=1 starts two raylets"
)
def test_it_runs_on_two_nodes_and_leaves_nothing(tmp_path):
    tools, venv, asked = tmp_path / "tools", tmp_path / "project" / ".venv" / "bin", tmp_path / "asked"
    for folder in (tools, venv):
        folder.mkdir(parents=True)
    programs = {
        tools / "srun": SRUN,
        tools / "scontrol": "#!/bin/bash\nprintf 'one\\ntwo\\n'\n",
        venv / "testgrad": RUN,
    }
    programs |= {
        venv / name: f'#!/bin/bash\nexec {Path(sys.executable).parent / name} "$@"\n' for name in ("python", "ray")
    }
    for path, text in programs.items():
        path.write_text(text)
        path.chmod(0o755)
    job = str(os.getpid())
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path / "project"), "SLURM_JOB_ID": job,
        "SLURM_JOB_NODELIST": "nodes[1-2]", "SLURM_CPUS_PER_TASK": "1", "ONE_AT_A_TIME": str(asked),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(SCRIPT), "run.yaml", "--set", "a.b=c"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert f"RAN train run.yaml --root {tmp_path}/project/runs --set a.b=c NODES 2 MODE token" in done.stdout, (
        done.stderr
    )
    assert done.returncode == 7, "the job's status is the run's"
    assert asked.read_text().split() == ["--nodelist=one", "--nodelist=one", "--nodelist=two"]
    assert not Path(f"/tmp/ray-{job}").exists()
    left = subprocess.run(["pgrep", "-f", f"/tmp/ray-{job}"], capture_output=True, text=True).stdout
    assert not left, f"processes of the cluster are left: {left}"
