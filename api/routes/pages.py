"""What every route that gives pages takes."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

Cursor = Annotated[str | None, Query(max_length=200, description="The next_cursor of the page before.")]
PageLimit = Annotated[int, Query(ge=1, le=200)]
History = Annotated[bool, Query(description="Each job with a few points of its loss, for a line beside it.")]
