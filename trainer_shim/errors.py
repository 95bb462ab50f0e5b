"""The errors that the shim raises."""


class ShimError(Exception):
    """Base of the shim's errors; the message is written for users."""


class VariableError(ShimError):
    """An environment variable is missing or invalid."""


class WorldError(ShimError):
    """The ranks of the world are missing, have joined twice, or share a GPU."""


class LeaseError(ShimError):
    """lease.json violates the protocol."""


class BatchError(ShimError):
    """A global batch cannot be split over this world."""


class CheckpointError(ShimError):
    """A checkpoint cannot be written, or none of the present checkpoints can be used."""


class SupersededError(ShimError):
    """A newer generation has started on the checkpoint directory: this trainer must write nothing more."""


class UsageError(ShimError):
    """A script calls the shim in a wrong way; the message names the fix."""
