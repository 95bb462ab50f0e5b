"""Apps: which jobs belong to one, and how their tuners cap, hold and end trials between snapshot and policy. Pure."""
