"""The event loops of published simulators, for parity with their figures."""
