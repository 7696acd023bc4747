"""`rubato recipes`: the programs that ship with Rubato, and what `--config` may set of each."""

from __future__ import annotations

from dataclasses import asdict

from rubato.cli.options import JsonOption
from rubato.cli.output import put, put_json, put_table
from rubato.recipes import RECIPES
from rubato.recipes.keys import config_keys


def recipes(*, as_json: JsonOption = False) -> None:
    """List the programs that --recipe names, with their --config. No service is asked."""
    if as_json:
        put_json(
            [
                {"name": one.name, "description": one.summary, "config": [asdict(key) for key in config_keys(one)]}
                for one in RECIPES.values()
            ]
        )
        return
    for number, one in enumerate(RECIPES.values()):
        if number:
            put("")
        put(f"{one.name}: {one.summary}")
        rows = [
            {
                "key": key.name,
                "type": key.type,
                "default": "null" if key.default is None else key.default,
                "what": key.doc,
            }
            for key in config_keys(one)
        ]
        if rows:
            put_table(rows, ("key", "type", "default", "what"))
