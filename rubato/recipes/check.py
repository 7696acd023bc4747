"""Whether a recipe takes what a spec hands it, before anything is started. Pure; reads only the recipe's source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rubato.errors import EntrypointError, Finding, meant
from rubato.recipes import find_recipe
from rubato.recipes.keys import ConfigKey, config_keys

_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,), "float": (int, float), "bool": (bool,), "str": (str,), "None": (type(None),),
}  # fmt: skip


def check_recipe(name: str, config: Mapping[str, Any]) -> list[Finding]:
    """What the recipe of that name would refuse: its name, a key of `config:` that it lacks, a value of another type.

    Returns:
        A finding for each, at `recipe` or `config.KEY`; empty: it takes all of them.
    """
    try:
        recipe = find_recipe(name)
    except EntrypointError as error:
        return [Finding("recipe", str(error))]
    keys = {key.name: key for key in config_keys(recipe)}
    findings = []
    for given, value in config.items():
        key = keys.get(given)
        if key is None:
            advice = meant(given, keys) or f"; it takes {', '.join(keys)}"
            findings.append(Finding(f"config.{given}", f"{recipe.name} has no such key{advice}"))
        elif not _takes(key, value):
            findings.append(Finding(f"config.{given}", f"{recipe.name} takes {_said(key)} here, not {value!r:.80}"))
    return findings


def _takes(key: ConfigKey, value: Any) -> bool:
    """A whole number is a float, too; a truth value is no number."""
    allowed = [kind for name in key.type.split(" | ") for kind in _TYPES[name]]
    return any(isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) for kind in allowed)


def _said(key: ConfigKey) -> str:
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "None": "null"}
    return " or ".join(words[name] for name in key.type.split(" | "))
