"""The loops of published simulators, followed in what they do with time: for parity with their figures."""
