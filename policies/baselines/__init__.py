"""The baselines that published systems are compared with."""
