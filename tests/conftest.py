"""What every test shares."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Clocks are no part of a property: a busy machine must not fail what holds.
settings.register_profile("rubato", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rubato")
