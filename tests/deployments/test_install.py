import ast
import subprocess
import sys
from pathlib import Path

import pytest

from deployments import install as installer

ROOT = Path(installer.__file__).parent.parent
LOG = Path("install.log")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what the stamp looks at, and a virtual environment that seems to be there."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "cpu.lock").write_text("torch==2.13.0+cpu\nbubblewrap-bin==0.11.0\n")
    (tmp_path / "requirements" / "dev.lock").write_text("pytest==9.0.2\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    return tmp_path


def test_old_python_is_named_with_the_mend() -> None:
    problem = installer.python_problem((3, 9), "/usr/bin/python3")
    assert problem is not None
    assert "Python 3.9 (/usr/bin/python3) is too old" in problem and "install Python 3.11" in problem
    assert installer.python_problem((3, 11), "python3") is None


def test_an_old_python_can_read_the_installer() -> None:
    tree = ast.parse(Path(installer.__file__).read_text(), feature_version=(3, 6))
    for node in ast.walk(tree):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            text = ast.unparse(annotation) if annotation is not None else ""
            assert " | " not in text and not text.startswith(("list[", "dict[", "tuple[")), f"evaluated by 3.6: {text}"


def test_other_platforms_are_refused() -> None:
    assert "Darwin arm64" in str(installer.platform_problem("Darwin", "arm64"))
    assert installer.platform_problem("Linux", "x86_64") is None


def test_missing_venv_module_names_the_debian_package() -> None:
    problem = installer.venv_problem(lambda name: name != "ensurepip", (3, 11))
    assert problem is not None and "ensurepip" in problem and "apt install python3.11-venv" in problem
    assert installer.venv_problem(lambda name: True, (3, 11)) is None


def test_full_disk_says_how_much_is_needed() -> None:
    problem = installer.disk_problem(2 * installer.GIB, 6 * installer.GIB, Path("here"))
    assert problem == "here has 2.0 GB free and the installation needs 6 GB: free some space"
    assert installer.disk_problem(6 * installer.GIB, 6 * installer.GIB, Path("here")) is None


@pytest.mark.parametrize(
    ("setting", "value", "in_container", "mend"),
    [
        ("kernel/unprivileged_userns_clone", "0", False, "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", False, "sysctl -w user.max_user_namespaces=15000"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", False, "apparmor_restrict_unprivileged_userns=0"),
        ("kernel/unprivileged_userns_clone", "1", True, "--security-opt seccomp=unconfined"),
        ("kernel/unprivileged_userns_clone", "1", False, "allow unprivileged user namespaces"),
    ],
)
def test_no_user_namespaces_names_the_setting(setting: str, value: str, in_container: bool, mend: str) -> None:
    settings = {f"/proc/sys/{setting}": value}
    problem = installer.namespace_problem("bwrap: No permissions\n", settings.get, in_container)
    assert "no user namespaces" in problem and "bwrap: No permissions" in problem and mend in problem
    assert "\n" not in problem


NO_TORCH = """Looking in indexes: somewhere
ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from versions: 2.12.0, 2.13.0)
ERROR: No matching distribution found for torch==2.13.0+cpu
"""


def test_missing_torch_wheel_names_the_index_setting() -> None:
    problem = installer.pip_problem(NO_TORCH, 1, "3.13", LOG)
    assert problem.startswith("no wheel for torch==2.13.0+cpu that fits Python 3.13") and "\n" not in problem
    assert "TESTGRAD_TORCH_INDEX" in problem and "PIP_FIND_LINKS" in problem

    constrained = (
        "ERROR: Cannot install torch==2.13.0+cpu because these package versions have conflicting dependencies."
    )
    assert installer.pip_problem(constrained + "\nERROR: ResolutionImpossible: see\n", 1, "3.13", LOG) == problem


def test_other_pip_failures_are_told_apart() -> None:
    other = NO_TORCH.replace("torch==2.13.0+cpu", "numba==0.65.0")
    assert "numba==0.65.0" in installer.pip_problem(other, 1, "3.14", LOG)
    offline = "WARNING: Retrying (Retry(total=4)) after connection broken\n" + NO_TORCH
    assert "check the network" in installer.pip_problem(offline, 1, "3.11", LOG)
    full = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    assert "disk filled up" in installer.pip_problem(full, 1, "3.11", LOG)
    strange = installer.pip_problem("ERROR: Wheel is invalid.\n", 2, "3.11", LOG)
    assert strange == "pip ended with status 2: Wheel is invalid. (all of it: install.log)"
    assert "ended by signal 9" in installer.pip_problem("Installing collected packages: a, b\n", -9, "3.11", LOG)


def test_second_run_does_nothing(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = "{}.{}".format(*sys.version_info[:2])
    installer.write_stamp(checkout / ".venv", installer.wanted_stamp(checkout, python, dev=True))
    monkeypatch.setattr(subprocess, "call", lambda *a, **k: pytest.fail("something was run"))
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("something was run"))
    for dev in (False, True):
        installer.install(checkout, dev=dev)
        assert "already installed" in capsys.readouterr().out


@pytest.mark.parametrize("changed", ["pyproject.toml", "requirements/cpu.lock", "requirements/dev.lock"])
def test_a_changed_lock_needs_another_run(checkout: Path, changed: str) -> None:
    before = installer.wanted_stamp(checkout, "3.11", dev=True)
    installer.write_stamp(checkout / ".venv", before)
    with (checkout / changed).open("a") as file:
        file.write("# changed\n")
    assert not installer.is_installed(
        installer.read_stamp(checkout / ".venv"), installer.wanted_stamp(checkout, "3.11", dev=True)
    )


def test_plain_installation_lacks_the_development_tools(checkout: Path) -> None:
    installer.write_stamp(checkout / ".venv", installer.wanted_stamp(checkout, "3.11", dev=False))
    stamp = installer.read_stamp(checkout / ".venv")
    assert installer.is_installed(stamp, installer.wanted_stamp(checkout, "3.11", dev=False))
    assert not installer.is_installed(stamp, installer.wanted_stamp(checkout, "3.11", dev=True))
    assert not installer.is_installed(stamp, installer.wanted_stamp(checkout, "3.12", dev=False))


def test_no_stamp_no_python_no_installation(checkout: Path) -> None:
    wanted = installer.wanted_stamp(checkout, "3.11", dev=False)
    assert not installer.is_installed(installer.read_stamp(checkout / ".venv"), wanted)
    installer.write_stamp(checkout / ".venv", wanted)
    (checkout / ".venv" / "bin" / "python").unlink()
    assert not installer.is_installed(installer.read_stamp(checkout / ".venv"), wanted)


def test_failed_phase_leaves_no_stamp(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installer, "ROOT", checkout)
    monkeypatch.setattr(installer.Installer, "make_venv", lambda self: None)
    monkeypatch.setattr(installer.Installer, "probe_sandbox", lambda self: None)
    monkeypatch.setattr(
        installer.Installer, "run", lambda self, command: (1, NO_TORCH) if "torch==2.13.0+cpu" in command else (0, "")
    )
    monkeypatch.setattr(installer.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 99 * installer.GIB}))
    installer.write_stamp(checkout / ".venv", {"root": str(checkout), "run": "what an earlier lock asked for"})
    assert installer.main([]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("testgrad: no wheel for torch==2.13.0+cpu") and shown.err.count("\n") == 1
    assert not (checkout / ".venv" / "installed.json").exists()


def test_a_package_that_was_cut_off_is_installed_again(tmp_path: Path) -> None:
    for name, record in {"whole-1": "whole/a.py,,\nwhole-1.dist-info/INSTALLER,,\n", "cut-1": "cut/a.py,,\n"}.items():
        (tmp_path / f"{name}.dist-info").mkdir()
        (tmp_path / f"{name}.dist-info" / "RECORD").write_text(record)
    (tmp_path / "begun-1.dist-info").mkdir()
    assert installer.drop_half_installed(tmp_path) == ["begun-1.dist-info", "cut-1.dist-info"]
    assert [path.name for path in tmp_path.iterdir()] == ["whole-1.dist-info"]


def test_make_alone_lists_every_target() -> None:
    shown = subprocess.run(
        ["make", "-C", str(ROOT), "--no-print-directory"], capture_output=True, text=True, check=True
    )
    listed = {line.split()[1] for line in shown.stdout.splitlines() if line.startswith("  make ")}
    assert listed == {"help", "install", "dev", "quickstart", "up", "down", "test", "lint", "format"}


def test_make_names_a_python_that_is_too_old(tmp_path: Path) -> None:
    old = tmp_path / "python-of-old"
    old.write_text(
        "#!/bin/sh\n"
        f'exec {sys.executable} -c "import runpy, sys; sys.version_info = (3, 9, 2); sys.argv = sys.argv[1:]; '
        'runpy.run_path(sys.argv[0], run_name=\'__main__\')" "$@"\n'
    )
    old.chmod(0o755)
    shown = subprocess.run(["make", "-C", str(ROOT), f"PYTHON={old}", "install"], capture_output=True, text=True)
    assert shown.returncode != 0
    assert "Traceback" not in shown.stderr and "testgrad: Python 3.9" in shown.stderr
