"""A private PostgreSQL for a test: a cluster of its own on loopback, with a password, that ends with the block."""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_DEBIAN = "/usr/lib/postgresql"


def need_postgres() -> Path:
    """The folder of its programs; skips the test where there is none."""
    found = shutil.which("initdb")
    folders = (
        [Path(found).parent] if found else sorted(Path(_DEBIAN).glob("*/bin"), key=lambda bin: int(bin.parent.name))
    )
    if not folders or not (folders[-1] / "initdb").is_file():
        pytest.skip("no PostgreSQL: initdb is not installed (Debian: apt install postgresql)")
    return folders[-1]


@contextmanager
def postgres() -> Iterator[str]:
    """The address of an empty database, as TESTGRAD_PREFECT_DATABASE wants it."""
    programs, account = need_postgres(), _account()
    folder = Path(tempfile.mkdtemp(prefix="testgrad-postgres-"))
    try:
        password = folder / "password"
        password.write_text(secrets.token_hex(16))
        if account:
            for path in (folder, password):
                shutil.chown(path, **account)

        def run(program: str, *arguments: str | Path) -> None:
            _run([str(programs / program), *map(str, arguments)], folder, account)

        data = folder / "data"
        login = ["--auth=scram-sha-256", "--username=prefect", f"--pwfile={password}"]
        run("initdb", "--pgdata", data, *login, "--no-sync", "--encoding=UTF8", "--locale=C")
        port = _free_port()  # as late as can be: others are given ports at random meanwhile
        options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder} -c fsync=off"
        run("pg_ctl", "--pgdata", data, "--log", folder / "log", "--wait", "--options", options, "start")
        try:
            yield f"postgresql+asyncpg://prefect:{password.read_text()}@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "--pgdata", data, "--wait", "--mode=immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _account() -> dict[str, Any]:
    """Whose its processes are: root's it refuses to be."""
    if os.geteuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("no user postgres, and PostgreSQL refuses to run as root")
    return {"user": entry.pw_uid, "group": entry.pw_gid}


def _run(command: Sequence[str], folder: Path, account: dict[str, Any]) -> None:
    with (folder / "said").open("w+") as said:  # no pipe: the server would hold its other end
        result = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False, timeout=120,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, **account, **({"extra_groups": []} if account else {}),
        )  # fmt: skip
        said.seek(0)
        assert result.returncode == 0, f"{command[0]}: {said.read()}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
