"""Adaptive batches: gradient noise, goodput, learning-rate scaling, and the choice of a batch plan.

The symbols are those of Qiao et al., "Pollux", OSDI 2021: M0 is `first_batch`, the global batch that the user chose; M
is a global batch in samples; phi is `noise_scale`, in samples; progress counts optimizer steps at M0.
"""
