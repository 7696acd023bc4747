from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import subprocess
import sys

import pytest

from rubato.errors import EntrypointError
from rubato.recipes import RECIPES, find_recipe
from rubato.recipes.keys import ConfigKey, config_keys

ALLOWED_IMPORTS = {
    "image-classifier": {"rubato", "torch"},
    "char-lm": {"rubato", "torch"},
    "measure-links": {"rubato", "torch"},
}
STANDARD = set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_file_with_a_train_function(name: str) -> None:
    recipe = find_recipe(name)
    assert recipe.path.is_file()
    module = importlib.import_module(recipe.module)
    assert module.__file__ == str(recipe.path)
    assert list(inspect.signature(module.train).parameters) == ["run"]
    assert 'if __name__ == "__main__":\n    rubato.main(train)\n' in recipe.path.read_text()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_imports_only_what_a_copy_of_it_can(name: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse(find_recipe(name).path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module))
    assert {path for path in imported if path.startswith("rubato")} == {"rubato"}
    assert {path.split(".")[0] for path in imported} - STANDARD == ALLOWED_IMPORTS[name]


def test_listing_recipes_imports_none_of_them() -> None:
    code = "import sys, rubato.recipes.keys; assert not {'torch', 'sklearn', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    assert find_recipe("image_classifier").name == "image-classifier"
    with pytest.raises(EntrypointError, match="no recipe is called 'image-clasifier'; did you mean 'image-classifier'"):
        find_recipe("image-clasifier")
    with pytest.raises(EntrypointError, match="there are: image-classifier, char-lm, measure-links"):
        find_recipe("zzz")


@pytest.mark.parametrize("name", RECIPES)
def test_the_keys_that_are_told_are_those_that_the_program_takes(name: str) -> None:
    recipe = find_recipe(name)
    taken = dataclasses.fields(importlib.import_module(recipe.module).Config)
    told = [(key.name, key.type, key.default) for key in config_keys(recipe)]
    assert told == [(field.name, field.type, field.default) for field in taken]


def test_a_key_is_told_with_the_string_under_it() -> None:
    keys = {key.name: key for key in config_keys(find_recipe("image-classifier"))}
    stop = "Stop after so many steps, whatever the epochs."
    assert keys["steps"] == ConfigKey("steps", "int | None", None, stop)
    assert keys["epochs"].doc == "", "the string under the next field is not its own"
