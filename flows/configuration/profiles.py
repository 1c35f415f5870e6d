"""Profiles: files of settings that belong together, one for each axis that a run chooses on."""

from pathlib import Path

import deployments
from flows.config import ConfigError
from flows.configuration import schema
from flows.configuration.files import read_file
from flows.configuration.layers import Layer, Merged

FOLDER = Path(deployments.__file__).parent / "profiles"


def available(axis: str, folder: Path = FOLDER) -> list[str]:
    """Names of the shipped profiles of an axis."""
    return sorted(path.stem for path in (folder / axis).glob("*.yaml"))


def chosen_profiles(merged: Merged, folder: Path = FOLDER) -> list[Layer]:
    """The layers of the profiles that `merged` chooses, in the order of the axes.

    A choice is a name, or the path of a YAML file, relative to the file that names it.

    Raises:
        ConfigError: there is no such profile, or it chooses profiles itself.
    """
    layers = []
    for axis in schema.AXES:
        key = f"{schema.PROFILES}.{axis}"
        choice = merged.values.get(key)
        if choice is None:
            continue
        origin = merged.origins[key][-1]
        path = _path(axis, choice, Path(origin.place.text).parent, folder)
        if path is None:
            raise ConfigError(
                f"{origin.place}: {key}: there is no profile {choice!r}; known are "
                f"{', '.join(available(axis, folder))}, "
                "or the path of a file that ends in .yaml"
            )
        shipped = path.is_relative_to(folder)
        name = f"profile {axis}/{path.stem}" if shipped else f"profile {path}"
        layer = read_file(path, name, shown=name if shipped else None, may_be_empty=True)
        if nested := schema.under(layer.values, schema.PROFILES):
            raise ConfigError(f"{path}: {nested[0]}: a profile chooses no profiles; set it in the run config")
        layers.append(layer)
    return layers


def _path(axis: str, choice: object, beside: Path, folder: Path) -> Path | None:
    if not isinstance(choice, str):
        return None
    if choice.endswith((".yaml", ".yml", ".toml")):
        path = beside / Path(choice).expanduser()
        return path if path.is_file() else None
    return folder / axis / f"{choice}.yaml" if choice in available(axis, folder) else None
