"""Tuners: given an app's trials and their losses, which of them wait, grow or end. Pure."""
