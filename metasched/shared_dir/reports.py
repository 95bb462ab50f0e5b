"""Report lines of trainers, parsed strictly: a line is hostile until ``parse_line`` has accepted it.

The format is in ``docs/developer/PROTOCOL.md``. Unknown keys and kinds are ignored, so that a newer shim can report to
an older daemon. A known kind with a missing, mistyped or implausible value is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from metasched.core.batching import MAX_REGIMES
from metasched.core.errors import MetaschedError

MAX_LINE_BYTES = 64 * 1024

# Bounds that no honest trainer exceeds.
MAX_STEPS_PER_SECOND = 10.0**6
MAX_SAMPLES_PER_SECOND = 10.0**10
CLOCK_SKEW_SECONDS = 24 * 3600.0
_MAX_STEP = 10**12
_MAX_SAMPLES = 10**15
_MAX_SECONDS = 10.0**8
_MAX_SCHEDULE = 64

_Instant = Annotated[float, Meta(ge=10.0**9)]  # September 2001: a clock before that was never set
_Seconds = Annotated[float, Meta(ge=0.0, le=_MAX_SECONDS)]
_PositiveSeconds = Annotated[float, Meta(gt=0.0, le=_MAX_SECONDS)]
_Step = Annotated[int, Meta(ge=0, le=_MAX_STEP)]
_StepCount = Annotated[int, Meta(ge=1, le=_MAX_STEP)]
_Samples = Annotated[int, Meta(ge=0, le=_MAX_SAMPLES)]
_SampleCount = Annotated[int, Meta(ge=1, le=_MAX_SAMPLES)]
_Batch = Annotated[int, Meta(ge=1, le=10**9)]
_WorldSize = Annotated[int, Meta(ge=1, le=2**20)]
_Number = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Bytes = Annotated[int, Meta(ge=0, le=2**60)]
_Loss = Annotated[float, Meta(ge=-1e300, le=1e300)]
_Progress = Annotated[float, Meta(ge=0.0, le=float(_MAX_STEP))]
_Plan = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Regimes = Annotated[int, Meta(ge=1, le=MAX_REGIMES)]
_Schedule = Annotated[tuple[tuple[_Batch, _Progress], ...], Meta(max_length=_MAX_SCHEDULE)]
_Sizes = Annotated[tuple[_WorldSize, ...], Meta(max_length=64)]
_RuleName = Annotated[str, Meta(max_length=64)]


class RefusedLineError(MetaschedError):
    """A report line is not what the protocol says; the message names the key and the expected value."""


class _Line(msgspec.Struct, frozen=True, rename={"at": "t", "generation": "incarnation", "size": "bytes"}):
    """Fields of every report line; ``at`` is the trainer's clock, unix seconds."""

    at: _Instant


class _Envelope(_Line, frozen=True):
    """Keys that decide whether, and as what, a line is read."""

    v: Literal[1]
    kind: str


class StartReport(_Line, frozen=True):
    """A trainer is ready; ``step`` and ``samples`` are the progress that it resumes from.

    ``progress`` is the same in steps at the first batch; None where the batch never changes.
    """

    run: _Number
    generation: _Number
    world_size: _WorldSize
    step: _Step
    samples: _Samples
    resumed: bool
    init_seconds: _Seconds
    progress: _Progress | None = None


class DeclareReport(_Line, frozen=True):
    """The training script's own figures of its work; None where the script declares none.

    ``first_batch`` is the global batch for which the learning rate is meant; ``max_batch``, ``min_per_gpu`` and
    ``max_per_gpu`` limit other batches; ``adaptive`` says whether the script consents to others; ``lr_scale`` names the
    rule that then scales the learning rate.

    ``adapts`` names the rule by which the script changes its batch by itself, ``regimes`` the largest number of regimes
    of the whole training, and ``schedule`` the regimes that it declares, as pairs of a batch and of the progress in
    steps at the first batch at which it begins.

    ``sizes`` are the world sizes at which the script can train; empty for all.
    """

    total_steps: _StepCount | None = None
    total_samples: _SampleCount | None = None
    global_batch: _Batch | None = None
    first_batch: _Batch | None = None
    max_batch: _Batch | None = None
    min_per_gpu: _Batch | None = None
    max_per_gpu: _Batch | None = None
    adaptive: bool | None = None
    lr_scale: _RuleName | None = None
    adapts: Literal["static", "accordion", "gns", "schedule"] | None = None
    regimes: _Regimes | None = None
    schedule: _Schedule = ()
    sizes: _Sizes = ()

    def __post_init__(self) -> None:
        """Refuse a schedule whose regimes are not in order.

        Raises:
            ValueError: the first regime does not begin at 0, or a later one not after the one before.
        """
        begins = [began for _, began in self.schedule]
        if begins and (begins[0] or any(later <= former for former, later in pairwise(begins))):
            raise ValueError("key 'schedule' must begin at 0, and each regime after the one before")


class StepsReport(_Line, frozen=True):
    """``steps`` optimizer steps over ``samples`` samples took ``seconds``; ``step`` is the last of them.

    ``data_seconds`` of the time the trainer waited for data, ``sync_seconds`` for other ranks, None where not measured.
    ``peak_bytes`` is the largest memory that rank 0 has used so far.

    ``metric`` is the mean of the values that the script gave ``ctx.metric`` since the last line, None where it is not
    finite; unset where it gave none. ``diverged`` says that ``loss`` is None because it is not finite.

    ``progress`` is the job's progress in steps at its first batch, ``grad_square`` and ``grad_variance`` the gradient
    noise (``core.batching.GradientNoise``), ``plan`` the number of the lease's batch plan in force, 0 for none.
    """

    step: _Step
    steps: _StepCount
    samples: _Samples
    seconds: _PositiveSeconds
    loss: _Loss | None
    world_size: _WorldSize
    global_batch: _Batch
    per_gpu_batch: _Batch
    accumulation: _Batch
    data_seconds: _Seconds | None = None
    sync_seconds: _Seconds | None = None
    peak_bytes: _Bytes | None = None
    progress: _Progress | None = None
    grad_square: float | None = None
    grad_variance: float | None = None
    plan: _Plan = 0
    metric: _Loss | msgspec.UnsetType | None = msgspec.UNSET
    diverged: bool = False

    def __post_init__(self) -> None:
        """Refuse an implausible speed.

        Raises:
            ValueError: more steps or samples a second than any GPU computes.
        """
        samples_limit = self.seconds * MAX_SAMPLES_PER_SECOND
        if self.steps > self.seconds * MAX_STEPS_PER_SECOND or self.samples > samples_limit:
            raise ValueError(f"{self.steps} steps of {self.samples} samples in {self.seconds:g} s are implausible")


class ProfilingReport(_Line, frozen=True):
    """Before this run, ``steps`` steps on ``world_size`` of its GPUs took ``seconds``; None for batches not told."""

    world_size: _WorldSize
    steps: _StepCount
    seconds: _PositiveSeconds
    global_batch: _Batch | None = None
    per_gpu_batch: _Batch | None = None
    accumulation: _Batch | None = None

    def __post_init__(self) -> None:
        """Refuse an implausible speed.

        Raises:
            ValueError: more steps a second than any GPU computes.
        """
        if self.steps > self.seconds * MAX_STEPS_PER_SECOND:
            raise ValueError(f"{self.steps} steps in {self.seconds:g} s are implausible")


class CheckpointReport(_Line, frozen=True):
    """A checkpoint of ``size`` bytes was written in ``seconds``; the training paused for ``stall_seconds`` of them."""

    step: _Step
    seconds: _Seconds
    size: _Bytes
    cause: Literal["periodic", "stop", "final"]
    stall_seconds: _Seconds | None = None


class StopReport(_Line, frozen=True):
    """The trainer stops before its work is done; ``noticed`` is when it saw the request, unix seconds."""

    step: _Step
    cause: Literal["signal", "mailbox", "finish", "superseded", "sigterm"]
    noticed: _Instant
    checkpointed: bool
    progress: _Progress | None = None


class EndReport(_Line, frozen=True):
    """The trainer has finished its work; ``metric`` as in ``StepsReport``."""

    step: _Step
    samples: _Samples
    loss: _Loss | None
    progress: _Progress | None = None
    metric: _Loss | msgspec.UnsetType | None = msgspec.UNSET


Report = StartReport | DeclareReport | ProfilingReport | StepsReport | CheckpointReport | StopReport | EndReport

_ENVELOPE = msgspec.json.Decoder(_Envelope)
_DECODERS: Mapping[str, msgspec.json.Decoder[Any]] = {
    "start": msgspec.json.Decoder(StartReport),
    "declare": msgspec.json.Decoder(DeclareReport),
    "trial": msgspec.json.Decoder(ProfilingReport),
    "steps": msgspec.json.Decoder(StepsReport),
    "checkpoint": msgspec.json.Decoder(CheckpointReport),
    "stop": msgspec.json.Decoder(StopReport),
    "end": msgspec.json.Decoder(EndReport),
}


def parse_line(line: bytes, now: float) -> Report | None:
    """The report in a line (without its newline); None for an unknown kind.

    Args:
        line: as read.
        now: unix seconds; instants later than this by more than a day are refused.

    Raises:
        RefusedLineError: the line is not what the protocol says.
    """
    if len(line) > MAX_LINE_BYTES:
        raise RefusedLineError(f"{len(line)} bytes; a line has at most {MAX_LINE_BYTES}")
    try:
        envelope = _ENVELOPE.decode(line)
        decoder = _DECODERS.get(envelope.kind)
        report: Report | None = None if decoder is None else decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedLineError(str(error)) from None
    except RecursionError:
        raise RefusedLineError("JSON nested too deeply") from None
    latest = now + CLOCK_SKEW_SECONDS
    if envelope.at > latest:
        raise RefusedLineError(f"key 't' must be at most {latest:.0f}: the trainer's clock is ahead")
    if isinstance(report, StopReport) and report.noticed > latest:
        raise RefusedLineError(f"key 'noticed' must be at most {latest:.0f}: the trainer's clock is ahead")
    return report
