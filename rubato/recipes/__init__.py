"""Programs that ship with Rubato, made to be read and copied.

A recipe imports `rubato`, torch and its own data library. Listing them imports none of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rubato.errors import EntrypointError, meant


@dataclass(frozen=True)
class Recipe:
    """A training program by name."""

    name: str
    """As a spec says it: `recipe: image-classifier`."""
    summary: str

    @property
    def module(self) -> str:
        """The module whose `train` is the program."""
        return f"{__name__}.{self.name.replace('-', '_')}"

    @property
    def path(self) -> Path:
        """The file to copy for one's own `train.py`."""
        return Path(__file__).with_name(f"{self.name.replace('-', '_')}.py")


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "image-classifier", "A convolutional network on scikit-learn's handwritten digits: 98 % in half a minute."
        ),
        Recipe("char-lm", "A small GPT that learns to write Python, on the source of the standard library."),
        Recipe("measure-links", "Trains nothing: measures the network between its workers, for `rubato plan`."),
    )
}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; `_` for `-` is accepted.

    Raises:
        EntrypointError: there is none; the message names those there are.
    """
    recipe = RECIPES.get(name.replace("_", "-"))
    if recipe is None:
        advice = meant(name, RECIPES) or f"; there are: {', '.join(RECIPES)}"
        raise EntrypointError(f"no recipe is called {name!r}{advice}")
    return recipe
