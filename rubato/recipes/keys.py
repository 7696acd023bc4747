"""What `config:` of a recipe may set, read from the recipe's source: importing it would load torch."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from typing import Any

from rubato.recipes import Recipe


@dataclass(frozen=True)
class ConfigKey:
    """A key of `config:`."""

    name: str
    type: str
    """As the recipe annotates it, such as `int | None`."""
    default: Any
    doc: str
    """The string that stands under the field; empty: the name says it all."""


@cache
def config_keys(recipe: Recipe) -> tuple[ConfigKey, ...]:
    """The fields of the recipe's `Config`, in order."""
    tree = ast.parse(recipe.path.read_text(encoding="utf-8"))
    (config,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Config")
    keys = []
    for node, after in zip(config.body, [*config.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            default = ast.literal_eval(node.value)
            keys.append(ConfigKey(node.target.id, ast.unparse(node.annotation), default, _doc(after)))
    return tuple(keys)


def _doc(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""
