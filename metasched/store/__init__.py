"""The history of jobs, runs, rounds and reports, in one SQLite file that only the daemon writes."""

from metasched.store.errors import (
    BusyStoreError,
    DamagedStoreError,
    MissingStoreError,
    NotAStoreError,
    OlderStoreError,
    StoreError,
)
from metasched.store.gpu_use import GpuUse
from metasched.store.records import (
    FIRST_STEPS,
    IMPORTED,
    ActionRecord,
    DecisionRecord,
    EndCause,
    EventRecord,
    ForecastRecord,
    GpuUseRecord,
    IterationRecord,
    JobChanges,
    JobEventRecord,
    JobRecord,
    RoundRecord,
    RunRecord,
    ShadowRecord,
    SpeedRecord,
    ThroughputRecord,
)
from metasched.store.report_ingest import IngestResult, ingest
from metasched.store.store import Store

__all__ = [
    "FIRST_STEPS",
    "IMPORTED",
    "ActionRecord",
    "BusyStoreError",
    "DamagedStoreError",
    "DecisionRecord",
    "EndCause",
    "EventRecord",
    "ForecastRecord",
    "GpuUse",
    "GpuUseRecord",
    "IngestResult",
    "IterationRecord",
    "JobChanges",
    "JobEventRecord",
    "JobRecord",
    "MissingStoreError",
    "NotAStoreError",
    "OlderStoreError",
    "RoundRecord",
    "RunRecord",
    "ShadowRecord",
    "SpeedRecord",
    "Store",
    "StoreError",
    "ThroughputRecord",
    "ingest",
]
