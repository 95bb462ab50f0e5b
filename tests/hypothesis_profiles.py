"""Hypothesis profiles: ``ci`` is small and the same on every run; ``thorough`` is for a developer with time."""

import os

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers


def load_profile():
    """Load the profile that ``HYPOTHESIS_PROFILE`` names, ``ci`` by default."""
    slow = [HealthCheck.too_slow]
    settings.register_profile("ci", max_examples=30, deadline=None, derandomize=True, suppress_health_check=slow)
    settings.register_profile("thorough", max_examples=1500, deadline=None, suppress_health_check=slow)
    profile = os.environ.get("HYPOTHESIS_PROFILE", "ci")
    settings.load_profile(profile)
    if profile == "ci":
        # Hypothesis also draws constants of the modules that are loaded, which differ with the order of the tests.
        providers._get_local_constants = providers.Constants
