"""Shapes of recipes, as the OpenAPI document shows them."""

from __future__ import annotations

from pydantic import BaseModel


class ConfigKey(BaseModel):
    """A key of `config:`."""

    name: str
    type: str
    """As the recipe annotates it, such as `int | None`."""
    default: int | float | bool | str | None
    doc: str


class Recipe(BaseModel):
    """A program that ships with Rubato."""

    name: str
    description: str
    config: list[ConfigKey]


class RecipeList(BaseModel):
    """All recipes."""

    items: list[Recipe]
