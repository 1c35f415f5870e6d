"""Write a task directory in Harbor's format, from the texts of its files."""

from collections.abc import Mapping
from pathlib import Path

from harness.pool.schema import TaskConfig

DOCKERFILE = """\
FROM python:3.11-slim
WORKDIR /workspace
COPY repo/ /workspace/
"""

# Harbor takes the reward from a file in the agent's reach. testgrad's grader never runs this script.
TEST_SH = """\
#!/bin/sh
mkdir -p /logs/verifier
cd /workspace || exit 1
if python3 -B -m unittest discover -s /tests -t /tests -v > /logs/verifier/test-stdout.txt 2>&1; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""

SOLVE_SH = """\
#!/bin/sh
cp -R "$(dirname "$0")/files/." "${1:-/workspace}/"
"""


def write_task(
    path: Path,
    *,
    instruction: str,
    config: TaskConfig,
    repo: Mapping[str, str],
    tests: Mapping[str, str],
    solution: Mapping[str, str],
) -> None:
    """Write the task at `path`, which must not exist yet. The mappings give texts by relative path."""
    path.mkdir(parents=True)
    texts = {"instruction.md": instruction, "task.toml": config.to_toml()}
    texts |= {"environment/Dockerfile": DOCKERFILE, "tests/test.sh": TEST_SH, "solution/solve.sh": SOLVE_SH}
    texts |= {f"environment/repo/{name}": text for name, text in repo.items()}
    texts |= {f"tests/{name}": text for name, text in tests.items()}
    texts |= {f"solution/files/{name}": text for name, text in solution.items()}
    for name, text in texts.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        if name.endswith(".sh"):
            file.chmod(0o755)
