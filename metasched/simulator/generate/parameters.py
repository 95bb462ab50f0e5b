"""Base of the generators' parameter records, which are also the keys of a scenario's ``[workload]`` table."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class GeneratorParameters(BaseModel):
    """Base of all parameter records: frozen, strictly typed, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TableParameters(GeneratorParameters):
    """Base of the records of generators that draw models from a throughput table.

    Attributes:
        reference: the GPU type on which drawn durations hold.
    """

    reference: str = "v100"
