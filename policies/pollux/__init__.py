"""Pollux: goodput-optimised allocations (Qiao et al., OSDI 2021)."""
