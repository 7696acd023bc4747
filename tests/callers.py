"""Callers of use-cases for tests and benchmarks that go without HTTP."""

from __future__ import annotations

from service.access import Principal, Role


def an_admin() -> Principal:
    """Who may see and do everything."""
    return Principal(Role.ADMIN, "admin")
