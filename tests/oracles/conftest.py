"""The Hypothesis profile."""

from tests.hypothesis_profiles import load_profile

load_profile()
