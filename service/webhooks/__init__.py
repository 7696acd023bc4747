"""Webhooks: what happens to a project's jobs is told to addresses outside, signed, at least once."""
