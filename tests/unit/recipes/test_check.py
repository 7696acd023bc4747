"""What a recipe would refuse is told before a worker starts; what it takes is never refused."""

from __future__ import annotations

import pytest

from rubato.recipes import RECIPES
from rubato.recipes.check import check_recipe
from rubato.recipes.keys import config_keys


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_takes_its_own_defaults(name: str) -> None:
    assert check_recipe(name, {key.name: key.default for key in config_keys(RECIPES[name])}) == []
    assert check_recipe(name, {}) == []


@pytest.mark.parametrize(
    ("key", "value", "refused"),
    [
        ("epochs", 3, None),
        ("epochs", "abc", "image-classifier takes a whole number here, not 'abc'"),
        ("epochs", 3.5, "image-classifier takes a whole number here, not 3.5"),
        ("epochs", True, "image-classifier takes a whole number here, not True"),
        ("epochs", None, "image-classifier takes a whole number here, not None"),
        ("steps", None, None),
        ("steps", 10, None),
        ("steps", [], "image-classifier takes a whole number or null here, not []"),
        ("lr", 1, None),
        ("lr", 1e-3, None),
        ("lr", "1e-3x", "image-classifier takes a number here, not '1e-3x'"),
        ("epoch", 3, "image-classifier has no such key; did you mean 'epochs'?"),
        ("zzz", 3, "image-classifier has no such key; it takes epochs, steps, lr"),
    ],
)
def test_keys_and_values(key: str, value: object, refused: str | None) -> None:
    told = [(finding.path, finding.message) for finding in check_recipe("image-classifier", {key: value})]
    if refused is None:
        assert told == []
    else:
        ((path, message),) = told
        assert (path, message[: len(refused)]) == (f"config.{key}", refused)


def test_every_finding_is_told_and_an_unknown_recipe_is_one() -> None:
    assert [one.path for one in check_recipe("char-lm", {"a": 1, "b": 2})] == ["config.a", "config.b"]
    (unknown,) = check_recipe("image-clasifier", {"a": 1})
    assert (unknown.path, "did you mean 'image-classifier'?" in unknown.message) == ("recipe", True)
