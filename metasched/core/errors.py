"""Every error that metasched raises on purpose."""


class MetaschedError(Exception):
    """Base of all; its message is fit to be shown to a user as it is."""
