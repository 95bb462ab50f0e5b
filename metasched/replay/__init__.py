"""Recorded rounds: snapshots as bytes, and rounds decided again from them."""
