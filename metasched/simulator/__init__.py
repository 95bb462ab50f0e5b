"""The simulator: the daemon's own engine on a simulated cluster."""
