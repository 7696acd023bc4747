"""From a file and the flags of `submit` to a spec ready to send. Pure but for reading the file."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from rubato.errors import SpecError, UserError, meant
from rubato.recipes import find_recipe
from rubato.recipes.check import check_recipe
from rubato.wire.settings import why_empty
from rubato.wire.spec import JobSpec, parse_spec

_TEXTS = ("env.", "labels.")
"""How the paths of fields begin that are always text, which may be empty."""
SPEC_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Draft:
    """A spec before its working folder is packed."""

    data: dict[str, Any]
    folder: Path
    """What the spec's paths are relative to."""


def find_draft(source: str | None, recipe: str | None) -> Draft:
    """A draft from what a command was given: FILE, or `--recipe`.

    Raises:
        typer.BadParameter: both, or neither.
        UserError: as `read_draft` and `draft_of_recipe`.
    """
    if source is not None and recipe is None:
        return read_draft(source)
    if recipe is not None and source is None:
        return draft_of_recipe(recipe)
    raise typer.BadParameter("give exactly one of FILE and --recipe")


def read_draft(source: str) -> Draft:
    """A draft from `job.yaml`, `job.json` or `train.py[:func]`.

    Raises:
        UserError: the file is missing, or is none of these, or does not hold a mapping.
    """
    name, colon, function = source.partition(":")
    path = Path(name)
    if path.suffix == ".py":
        if not path.is_file():
            raise UserError(f"there is no file {name}{meant(path.name, _names_beside(path, ('.py',)))}")
        data = {"name": unique_name(path.stem), "entrypoint": path.name + colon + function, "working_dir": "."}
        return Draft(data, path.parent.absolute())
    if path.suffix not in SPEC_SUFFIXES:
        raise UserError(
            f"{source} is neither a spec (job.yaml, job.json) nor a program (train.py); `rubato init` makes both"
        )
    if not path.is_file():
        near = meant(path.name, _names_beside(path, SPEC_SUFFIXES))
        raise UserError(f"there is no file {source}{near or '; `rubato init` makes a first job.yaml and train.py'}")
    return Draft(_read_mapping(path), path.parent.absolute())


def _names_beside(path: Path, suffixes: tuple[str, ...]) -> list[str]:
    folder = path.parent
    return sorted(one.name for one in folder.iterdir() if one.suffix in suffixes) if folder.is_dir() else []


def draft_of_recipe(recipe: str) -> Draft:
    """A draft that runs a program which ships with Rubato.

    Raises:
        EntrypointError: there is no such recipe; names those there are.
    """
    name = find_recipe(recipe).name
    return Draft({"name": unique_name(name), "recipe": name}, Path.cwd())


def _read_mapping(path: Path) -> dict[str, Any]:
    import yaml

    from rubato.spec_yaml import describe_yaml_error

    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else read_yaml(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} is not well-formed: {describe_yaml_error(error)}") from error
    if not isinstance(data, dict):
        raise UserError(
            f"{path} is empty; see `rubato init`"
            if data is None
            else f"{path} holds {data!r:.60}, not the fields of a job spec; see `rubato init`"
        )
    return data


def read_yaml(text: str) -> Any:
    """YAML as people write it, see `rubato.spec_yaml`.

    Raises:
        yaml.YAMLError, ValueError: it is not YAML.
    """
    import yaml

    from rubato.spec_yaml import SpecLoader

    return yaml.load(text, SpecLoader)


def unique_name(stem: str) -> str:
    """A job name from a file or recipe name, with four random letters: names of unfinished jobs must differ."""
    base = re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._") or "job"
    letters = "".join(secrets.choice("abcdefghjkmnpqrstuvwxyz23456789") for _ in range(4))
    return f"{base[:58]}-{letters}"


def apply_settings(data: dict[str, Any], settings: Mapping[str, str]) -> dict[str, Any]:
    """The data with `--set` applied: `workers.max=8` sets a field of a field; values are read as YAML.

    Raises:
        UserError: a path leads through something that is no mapping, a value is not YAML, or there is none.
    """
    import yaml

    result: dict[str, Any] = json.loads(json.dumps(data, default=str))
    for path, text in settings.items():
        if not text and not path.startswith(_TEXTS):
            raise UserError(why_empty(path))
        *parents, last = path.split(".")
        place = result
        for depth, name in enumerate(parents):
            below = place.setdefault(name, {})
            if not isinstance(below, dict):
                raise UserError(
                    f"--set {path}={text}: {'.'.join(parents[: depth + 1])} is {below!r}, which has no fields"
                )
            place = below
        try:
            place[last] = read_yaml(text) if text else text
        except (yaml.YAMLError, ValueError) as error:
            raise UserError(f"--set {path}={text}: the value is not YAML; quote it") from error
    return result


def apply_flags(
    data: dict[str, Any],
    *,
    name: str | None,
    workers: int | None,
    config: Mapping[str, str],
    env: Mapping[str, str],
) -> dict[str, Any]:
    """The data with the dedicated flags applied."""
    if name is not None:
        data = {**data, "name": name}
    if workers is not None:
        own = data.get("workers")
        data = {**data, "workers": {**(own if isinstance(own, dict) else {}), "initial": workers}}
    if config:
        data = apply_settings(data, {f"config.{key}": value for key, value in config.items()})
    if env:
        own_env = data.get("env")
        data = {**data, "env": {**(own_env if isinstance(own_env, dict) else {}), **env}}
    return data


def imply_working_dir(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The data, with the spec's own folder as `working_dir` where its entrypoint is a file and nothing says whose.

    Raises:
        UserError: the file is not in that folder: nobody's home folder is to be uploaded for a slip.
    """
    target = str(data.get("entrypoint") or "").partition(":")[0]
    is_told = any(data.get(field) is not None for field in ("working_dir", "package", "recipe"))
    if is_told or not target.endswith(".py"):
        return data
    if not (folder / target).is_file():
        raise UserError(
            f"there is no file {target} in {folder}, the folder of the spec; "
            "mend entrypoint, or name its folder in working_dir"
        )
    return {**data, "working_dir": "."}


def read_spec(
    source: str | None,
    *,
    recipe: str | None = None,
    workers: int | None = None,
    config: Mapping[str, str],
    env: Mapping[str, str],
    settings: Mapping[str, str],
) -> tuple[JobSpec, Path]:
    """A spec that is used on this machine, with all flags applied; and the folder of its program.

    Raises:
        typer.BadParameter, UserError: as `find_draft` and `parse_spec`.
        SpecError: the recipe does not take its `config`.
    """
    draft = find_draft(source, recipe)
    data = apply_flags(draft.data, name=None, workers=workers, config=config, env=env)
    spec = parse_spec(apply_settings(data, settings))
    if spec.recipe is not None and (findings := check_recipe(spec.recipe, spec.config)):
        raise SpecError(findings)
    return spec, (draft.folder / (spec.working_dir or ".")).resolve()


def read_environment_flags(flags: list[str], environment: Mapping[str, str]) -> dict[str, str]:
    """`--env NAME=value`, or `--env NAME` for the value in this shell.

    Raises:
        UserError: a bare name that this shell does not set.
    """
    found = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        if not equals:
            if name not in environment:
                raise UserError(f"--env {name}: this shell does not set {name}; write --env {name}=value")
            value = environment[name]
        found[name] = value
    return found
