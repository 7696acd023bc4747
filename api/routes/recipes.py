"""What a spec may say: its schema, and the recipes (programs that ship with Rubato) with the keys of `config:`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from api import recipe_schemas as schemas
from api.auth import Caller, needs, public
from api.routes.errors import errors
from rubato.recipes import RECIPES
from rubato.recipes.keys import config_keys
from rubato.wire.schema import job_spec_schema

router = APIRouter(prefix="/api/v1", tags=["recipes"])


@router.get("/recipes", response_model=schemas.RecipeList, responses=errors())
@needs(None)
async def list_recipes(caller: Caller) -> Any:
    """The programs that `recipe:` of a spec may name, with the keys of `config:`, their types, defaults and meaning."""
    return {
        "items": [
            {
                "name": recipe.name,
                "description": recipe.summary,
                "config": [asdict(key) for key in config_keys(recipe)],
            }
            for recipe in RECIPES.values()
        ]
    }


@router.get("/schemas/job-spec", response_model=dict[str, Any], responses=errors())
@public
async def get_job_spec_schema() -> Any:
    """The JSON Schema (draft 7) of a job spec, for editors, which send no token: keys, types, defaults and meanings."""
    return job_spec_schema()
