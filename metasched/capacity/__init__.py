"""What nodes offer and what jobs take of it: shapes, units, and pools that count what is left. Pure."""
