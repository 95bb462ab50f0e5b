"""Every error that the shim raises on purpose."""


class ShimError(Exception):
    """Base of all; its message is fit to be shown to a user as it is."""


class VariableError(ShimError):
    """An environment variable is missing or makes no sense."""


class WorldError(ShimError):
    """The processes that have come are not the world that was announced."""


class LeaseError(ShimError):
    """lease.json is not what the protocol says."""


class BatchError(ShimError):
    """A global batch cannot be split over this world."""


class CheckpointError(ShimError):
    """A checkpoint cannot be written, or none of those present can be used."""


class SupersededError(ShimError):
    """A newer generation has started on the checkpoint directory: this one must write nothing more."""


class UsageError(ShimError):
    """The shim's calls came in an order that has no meaning; the message says which."""
