"""Kind `script`: Harbor's tests/test.sh, which runs beside the code under test and writes the reward. Least protected.

Harbor's folders lie elsewhere here, since of a sandbox only its workspace and /tmp can be written: the hidden text
files are shown with /logs renamed to /tmp/logs, and the image's working directory to the workspace.
"""

import json
import math
import re
import secrets

from harness.sandbox import WORKSPACE, ExecResult, Sandbox
from harness.verifier.command_report import ended_badly
from harness.verifier.graders import base
from harness.verifier.graders.base import Grader, register_grader
from harness.verifier.hidden import SCRIPT, hidden_files, read_hidden
from harness.verifier.report import Judgement
from harness.verifier.verdict import Status

_LOGS = "/tmp/logs"
# The reward is printed by the same command that ran the script: its /tmp is gone afterwards.
_RUN = f"""\
mkdir -p {_LOGS}/verifier {_LOGS}/agent
if [ -x /bin/bash ]; then bash=bash; else bash=sh; fi
case "$(head -n 1 /tests/{SCRIPT})" in *bash*) ;; *) bash=sh ;; esac
$bash /tests/{SCRIPT} >&2 </dev/null
read -r nonce
for file in reward.json reward.txt; do
    [ -f {_LOGS}/verifier/$file ] || continue
    printf '\\n%s ' "$nonce"
    head -c 65536 {_LOGS}/verifier/$file | tr '\\n' ' '
    echo
    break
done
exit 0
"""


@register_grader("script")
class ScriptGrader(Grader):
    """Passed when every number that the script writes is at least 1; reward.json goes before reward.txt."""

    def prepare(self) -> None:
        files = read_hidden(self.task.tests, [*hidden_files(self.task.tests), SCRIPT])
        self.files = {path: _moved(data, self.task.config.environment.workdir) for path, data in files.items()}

    async def run(self, sandbox: Sandbox, limit: float) -> tuple[Judgement, ExecResult]:
        nonce = secrets.token_hex(16)
        await sandbox.mount_read_only("/tests", self.files)
        result = await sandbox.exec(
            ["sh", "-c", _RUN],
            stdin=f"{nonce}\n".encode(),  # not on the command line, which all may read
            timeout=limit + base.GRACE,
            env=self.task.config.verifier.env,
        )
        return ended_badly(result) or _judge(result.stdout, nonce), result


def _moved(data: bytes, workdir: str | None) -> bytes:
    data = re.sub(rb"(?<![\w./-])/logs/(?=verifier|agent)", f"{_LOGS}/".encode(), data)
    if workdir and workdir != WORKSPACE:
        folder = re.escape(workdir.rstrip("/").encode())
        data = re.sub(rb"(?<![\w./-])" + folder + rb"(?![\w-])", WORKSPACE.encode(), data)
    return data


def _judge(stdout: bytes, nonce: str) -> Judgement:
    prefix = f"{nonce} ".encode()
    lines = [line.removeprefix(prefix) for line in stdout.split(b"\n") if line.startswith(prefix)]
    if len(lines) != 1:
        return Judgement(Status.BROKEN, f"tests/{SCRIPT} wrote no reward")
    try:
        stored = json.loads(lines[0])
        values = [float(value) for value in (stored.values() if isinstance(stored, dict) else [stored])]
    except (ValueError, TypeError, RecursionError):
        return Judgement(Status.BROKEN, f"tests/{SCRIPT} wrote a reward that is no number")
    if not values or not all(map(math.isfinite, values)):
        return Judgement(Status.BROKEN, f"tests/{SCRIPT} wrote a reward that is no number")
    if min(values) >= 1:
        return Judgement(Status.PASSED, f"tests/{SCRIPT} gave {min(values):g}")
    return Judgement(Status.FAILED, f"tests/{SCRIPT} gave {min(values):g}")
