"""Scheduling policies: a folder for each published system, and baselines.

A new policy is a subclass of `metasched.core.policy.Policy` (of `metasched.time_shares.policy_base.TimeSharePolicy` if
it gives out time shares), an entry point in setup.py, which counts after the next installation, and a section in
docs/researcher/policies/.
"""
