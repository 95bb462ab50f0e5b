"""Scheduling policies: a folder for each published system, and baselines; setup.py registers them."""
