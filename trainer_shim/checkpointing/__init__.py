"""Checkpoints on disk: atomic files, manifests, retention, generations, and the states that they hold."""
