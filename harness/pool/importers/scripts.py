"""What Harbor runs of a task: its image, its verifier, its solution. testgrad's own grader runs none of them."""

import json
import shlex
from collections.abc import Sequence

from harness.pool.schema import Grading

_HEAD = """\
#!/bin/bash
# Harbor's entry: it grades where the agent may have been. testgrad's own grader does not run it.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; fi
mkdir -p /logs/verifier
echo 0 > /logs/verifier/reward.txt
cd {workdir} || exit 0
"""

_COPY = """\
tar -C "$(dirname "$0")" --exclude=./test.sh -cf - . | tar -xf -
"""

_PATCH = """\
git apply --whitespace=nowarn - <<'{end}'
{patch}
{end}
"""

_CHECK = """\
{command} > /logs/verifier/test-stdout.txt 2>&1
python3 - <<'END_OF_CHECK'
import json, os, re
expected = json.loads({expected})
form = {form}
statuses = {{}}
if form == "junit":
    import xml.etree.ElementTree as tree
    if os.path.exists("/logs/verifier/report.xml"):
        for case in tree.parse("/logs/verifier/report.xml").iter("testcase"):
            where = case.get("classname")
            name = (where + "::" if where else "") + (case.get("name") or "")
            bad = any(case.find(word) is not None for word in ("failure", "error", "skipped"))
            statuses[name] = not bad
else:
    log = open("/logs/verifier/test-stdout.txt", errors="replace").read()
    if form == "pytest":
        log = log.rpartition("short test summary info")[2]
        for line in log.splitlines():
            for name in expected:
                if line == "PASSED " + name:
                    statuses[name] = True
    else:
        name = None
        for line in log.splitlines():
            match = re.match(r"(\\w+) \\(([\\w.]+)\\)", line)
            if match:
                test, where = match.groups()
                where = where[: -len(test) - 1] if where.endswith("." + test) else where
                name = test + " (" + where + ")" if form == "django" else where + "." + test
            title = line.rpartition(" ... ")[0]
            if name and re.search(r"(\\.\\.\\. |^)ok\\s*$", line):
                statuses[name] = True
                statuses[title] = True
                name = None
passed = all(statuses.get(name) for name in expected)
open("/logs/verifier/reward.txt", "w").write("1" if passed and expected else "0")
END_OF_CHECK
"""


def dockerfile(
    image: str | None, workdir: str, has_snapshot: bool, bug_patch: str | None = None, gone: Sequence[str] = ()
) -> str:
    """The environment: the image, with the snapshot over its repository, whose history may hold the fix and so goes.

    `bug_patch` names a file beside the Dockerfile that breaks the image's repository; `gone` are files of the image
    that the snapshot does not have.
    """
    lines = [f"FROM {image or 'python:3.11-slim'}", f"WORKDIR {workdir}"]
    if has_snapshot:
        lines += [f"COPY repo/ {workdir}/", *(f"RUN rm -f {shlex.quote(path)}" for path in gone)]
    elif bug_patch:
        lines += [f"COPY {bug_patch} /tmp/", f"RUN git apply --whitespace=nowarn /tmp/{bug_patch}; rm /tmp/{bug_patch}"]
    if image:
        commit = "git -c user.name=testgrad -c user.email=testgrad@localhost commit -q -m snapshot"
        lines += [f"RUN rm -rf .git && git init -q && git add -A && {commit}"]
    return "\n".join(lines) + "\n"


def solve_script(workdir: str, patch: str | None, reverse: bool = False, deleted: Sequence[str] = ()) -> str:
    """The reference solution: files laid over the repository, or a patch beside the script where these are unknown."""
    lines = ["#!/bin/sh", 'here=$(cd "$(dirname "$0")" && pwd)', f'cd "${{1:-{workdir}}}" || exit 1']
    if patch:
        lines += [f'git apply --whitespace=nowarn {"-R " * reverse}"$here/{patch}"']
    else:
        lines += ['cp -R "$here/files/." .'] + [f"rm -f {shlex.quote(path)}" for path in deleted]
    return "\n".join(lines) + "\n"


def check_script(grading: Grading, workdir: str, test_patch: str | None) -> str:
    """`tests/test.sh`: lays the hidden tests over the repository, runs them, and writes the reward."""
    head = _HEAD.format(workdir=shlex.quote(workdir))
    if test_patch is None:
        head += _COPY
    elif test_patch.strip():
        end = "END_OF_TESTS"
        while end in test_patch:
            end += "_"
        head += _PATCH.format(patch=test_patch.rstrip("\n"), end=end)
    form = {"pytest": "pytest", "junit": "junit", "unittest": "unittest"}.get(grading.report, grading.log_parser or "")
    # Twice: as text of JSON, and that as a literal of Python.
    expected = json.dumps(json.dumps(grading.expected, ensure_ascii=True))
    return head + _CHECK.format(command=_command(grading), expected=expected, form=json.dumps(form))


def _command(grading: Grading) -> str:
    files = list(dict.fromkeys(test_id.partition("::")[0] for test_id in grading.expected))
    match grading.report:
        case "pytest":
            argv = ["python", "-m", "pytest", "-rA", "-p", "no:cacheprovider", *files]
        case "unittest":
            argv = ["python", "-m", "unittest", "-v", *grading.expected]
        case _:
            argv = [word.replace("{report}", "/logs/verifier/report.xml") for word in grading.test_command or ["false"]]
    return shlex.join(argv)
