"""Gavel (OSDI'20): heterogeneity-aware policies as optimisation problems over fractions of time."""
