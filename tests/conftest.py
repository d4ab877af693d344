"""Settings of the property tests: quick and repeatable unless HYPOTHESIS_PROFILE names another profile."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_SLOW_IS_FINE = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)

settings.register_profile("fast", max_examples=60, deadline=None, derandomize=True, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile(
    "thorough", max_examples=4000, deadline=None, print_blob=True, suppress_health_check=_SLOW_IS_FINE
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
