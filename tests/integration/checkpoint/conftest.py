from __future__ import annotations

from tests.s3_fixtures import s3, server

__all__ = ["s3", "server"]
