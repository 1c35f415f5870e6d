"""`testgrad scale` by the command line: what is written, what is said, and what is refused without a traceback."""

import json

import pytest
from typer.testing import CliRunner

from flows.cli import app
from tasks.journal import ASKED, write_json
from tasks.lease import lease
from tasks.wanted_replicas import NAME, asked_replicas


@pytest.fixture
def folder(tmp_path):
    """The folder of the run p/e, which was configured with two replicas."""
    write_run(tmp_path / "p" / "e")
    return tmp_path / "p" / "e"


def write_run(folder, **serving):
    write_json(folder / "config.json", {"config": {"serving": {"replicas": 2, "colocated": False} | serving}})


def scaled(tmp_path, *arguments):
    result = CliRunner().invoke(app, ["scale", *arguments, "--root", str(tmp_path)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, " ".join(result.output.split())


def test_a_run_that_is_alive_is_told_and_says_what_comes(tmp_path, folder):
    with lease(folder, "train"):
        code, said = scaled(tmp_path, "p/e", "5")
        assert code == 0 and "5 replicas instead of 2" in said and "3 more boot" in said
        stored = json.loads((folder / NAME).read_text())
        assert stored["replicas"] == 5 and stored["since"].endswith("+00:00")
        code, said = scaled(tmp_path, "p/e", "1")
        assert code == 0 and "1 replicas instead of 5" in said and "4 of them leave" in said
        assert scaled(tmp_path, "p/e", "1") == (0, "p/e has 1 wanted as before")
    assert asked_replicas(folder) == 1


@pytest.mark.parametrize("work", [None, "prune"])
def test_of_a_run_that_is_not_alive_it_is_kept(tmp_path, folder, work):
    if work is None:
        code, said = scaled(tmp_path, "p/e", "3")
    else:
        with lease(folder, work):
            code, said = scaled(tmp_path, "p/e", "3")
    assert (code, asked_replicas(folder)) == (0, 3) and "not alive; it is kept for its next start" in said


@pytest.mark.parametrize(
    ("run", "number", "text"),
    [
        ("p/none", "2", "no run of this name"),
        ("p/e", "0", "N is 0, but a run needs a replica"),
        ("p/shared", "3", "serving.colocated"),
        ("p/score", "3", "is no training run"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(tmp_path, folder, run, number, text):
    write_run(tmp_path / "p" / "shared", colocated=True)
    write_run(tmp_path / "p" / "score")
    write_json(tmp_path / "p" / "score" / ASKED, {})
    code, said = scaled(tmp_path, run, number)
    assert code == 2 and text in said and "Traceback" not in said
    assert not list(tmp_path.rglob(NAME))
