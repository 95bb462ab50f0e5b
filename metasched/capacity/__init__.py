"""Capacity: the amounts that nodes hold for jobs, by shape, and the pool from which policies assign them. Pure."""
