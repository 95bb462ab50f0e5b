"""Shockwave: schedules planned ahead for jobs whose batch size changes (Zheng et al., NSDI 2023)."""
