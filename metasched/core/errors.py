"""The base class of all errors that metasched raises on purpose."""


class MetaschedError(Exception):
    """Base class of metasched's errors; the message can be shown to users as it is."""
