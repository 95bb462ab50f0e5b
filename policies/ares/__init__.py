"""Ares: elastic fair queuing (Liu et al., ACM TACO 2025)."""
