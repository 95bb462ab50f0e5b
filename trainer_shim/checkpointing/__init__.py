"""Checkpoints: what they hold, how they are written, and when they are removed.

The forms on disk, and the place for a new kind of checkpoint, are in `formats`.
"""
