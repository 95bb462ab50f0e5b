"""Why a job runs, waits or is acted on: a code that can be counted and facts that can be shown.

A reason is data. ``reason_words`` turns it into English where people read it: the CLI, the published status, logs.
A new code is a member of ``Code`` here, an entry of ``reason_words.WORDS``, and a ``Reason.of`` where it arises.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Self

Fact = str | int | float | tuple[Any, ...] | None
"""JSON-compatible and hashable: a sequence is a tuple of facts. (msgspec cannot read a recursive alias.)"""


class Code(enum.StrEnum):
    """The reasons that metasched and its policies give, each with its meaning.

    A policy of another package uses a code of its own, with the fact ``text``, or ``Reason.text``.
    """

    meaning: str

    def __new__(cls, code: str, meaning: str) -> Self:
        """A member whose value is the code."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    TEXT = "text", "Words without a code, from a policy of another package or an older version."

    # The job must not start.
    BAD_TAG = "bad_tag", "The job's tag or request cannot be scheduled."
    UNSTAMPED = "unstamped", "Slurm does not let metasched stamp the job."
    HELD_BY_OWNER = "held_by_owner", "The owner submitted the job with --hold and has not released it."
    DEPENDENCY = "dependency", "The job depends on another job."
    BEGIN_TIME = "begin_time", "The job's begin time is in the future."
    NOT_LAUNCHED = "not_launched", "The job's last runs ended before a trainer had started; it is tried again later."
    START_DEFERRED = "start_deferred", "Slurm did not start the job when it was released; a later round tries again."
    SLURM_REASON = "slurm_reason", "Slurm's own reason why it did not start a released job."
    RESERVATION_OVER = "reservation_over", "The reservation that the job asks for has ended or does not exist."
    RESERVATION_NOT_BEGUN = "reservation_not_begun", "The reservation that the job asks for begins later."
    RESERVATION_DENIES_USER = "reservation_denies_user", "The reservation does not admit the job's owner."
    QUOTA_TOO_SMALL = "quota_too_small", "The job needs more GPUs than a quota allows any single job."
    SUSPENDED_BY_OTHERS = "suspended_by_others", "Somebody other than metasched suspended the job."

    # The job is not taken in yet: limits of [intake].
    ARRAY_TOO_LARGE = "array_too_large", "The array has more tasks than [intake] limits allow."
    TOO_MANY_LIVE_JOBS = "too_many_live_jobs", "The job's user has as many live jobs as [intake] allows."
    INTAKE_CONTINUES = "intake_continues", "Many jobs arrived at once, and the next polls take in the rest."

    # Quotas: limits of Slurm's associations and QOS.
    QUOTA_REACHED = "quota_reached", "A quota leaves the job fewer GPUs than it needs, or no further job."
    QUOTA_CUT = "quota_cut", "A quota leaves the job fewer GPUs than the policy granted."
    QUOTA_ONE_TYPE = "quota_one_type", "Quotas leave the job one GPU type of those that it accepts."

    SIZE_NOT_ALLOWED = "size_not_allowed", "The job cannot run on the number of GPUs that the policy granted."
    SIZE_FAILED = "size_failed", "The job's script failed on a number of GPUs that was new to it, and is put back."

    # Resources that are missing.
    WAITS_FOR_GPUS = "waits_for_gpus", "Fewer GPUs are free than the job needs."
    WAITS_FOR_CPUS = "waits_for_cpus", "Too few CPUs or too little memory is free for a CPU-only job."
    GPUS_FRAGMENTED = "gpus_fragmented", "Enough GPUs are free, but not on nodes that can hold the job's shapes."
    GPUS_WITHOUT_CPUS = "gpus_without_cpus", "Enough GPUs are free, but on nodes without the CPUs or memory."
    UNEVEN_SPREAD = "uneven_spread", "The GPUs cannot be spread evenly over the nodes that the job asks for."
    NO_NODE_ACCEPTS = "no_node_accepts", "No node that suits the job accepts jobs now."
    EXCEEDS_NODES = "exceeds_nodes", "The nodes that accept jobs could not hold the job even if they were empty."
    EXCEEDS_PREEMPTIBLE_NODES = "exceeds_preemptible_nodes", "Jobs that cannot be preempted leave too few GPUs."
    RESERVATION_AHEAD = "reservation_ahead", "A reservation begins on suitable nodes before the job's time limit ends."
    SUSPENDED_RESOURCES_TAKEN = "suspended_resources_taken", "The resources of the suspended job's nodes are taken."

    # A placement that the policy prescribes and that cannot be realised.
    PLACE_NOT_IN_CLUSTER = "place_not_in_cluster", "A prescribed node is not in the cluster."
    PLACE_CLOSED = "place_closed", "A prescribed node accepts no jobs."
    PLACE_UNSUITABLE = "place_unsuitable", "A prescribed node does not match the job's request."
    PLACE_LACKS_GPUS = "place_lacks_gpus", "A prescribed node has too few free GPUs."
    PLACE_LACKS_CPUS = "place_lacks_cpus", "A prescribed node has too few free CPUs or too little memory."
    PLACE_TAKEN = "place_taken", "Another job has the prescribed placement."

    # Two jobs on the same GPUs: placement.
    SHARES_GPUS = "shares_gpus", "The job runs on the same GPUs as a co-runner."
    CO_RUNNER_CUT = "co_runner_cut", "A quota cuts the job whose GPUs this one was to share."
    CO_RUNNER_DOES_NOT_FIT = "co_runner_does_not_fit", "The co-runner is placed where both together do not fit."
    CO_RUNNER_UNPLACED = "co_runner_unplaced", "The co-runner has no placement either."
    CO_RUNNER_SUSPENDED = "co_runner_suspended", "One of the two jobs is suspended, so they cannot share GPUs."
    CO_RUNNER_FIXED = "co_runner_fixed", "Neither of the two jobs can be moved to the other."
    DOES_NOT_FIT_WITH_CO_RUNNER = (
        "does_not_fit_with_co_runner",
        "The job does not fit on the nodes of a fixed co-runner.",
    )
    NO_NODES_SUIT_PAIR = "no_nodes_suit_pair", "No nodes suit both jobs of a pair."

    # A policy's order.
    QUEUE_POSITION = "queue_position", "The job's position in the policy's queue."
    PRIORITY_POSITION = "priority_position", "The job's position by Slurm's multifactor priority."
    FAIR_FINISH_POSITION = "fair_finish_position", "The job's position by its finish time under fair sharing."
    UNKNOWN_DEMAND_POOL = "unknown_demand_pool", "The job's demand is not known; it is in the fair-shared pool."
    ATTAINED_SERVICE_QUEUE = "attained_service_queue", "The job's queue by the GPU time that it has received."
    SHORTEST_TIME = "shortest_time", "Jobs are served by their remaining time."
    SHORTEST_SERVICE = "shortest_service", "Jobs are served by their remaining GPU time."
    REMAINING_UNKNOWN = "remaining_unknown", "The job's remaining time is not known, so it comes last."
    GOODPUT_SPEEDUP = "goodput_speedup", "The allocation makes the cluster's goodput the highest."
    GOODPUT_GAINS_LESS = "goodput_gains_less", "Other jobs gain more by the GPUs."
    LEAST_SERVED_APP = "least_served_app", "Apps are served by the GPU time that their jobs have received."
    PLACEMENT_PREFERENCE = "placement_preference", "Apps are served by how much slower they are on several nodes."
    MOST_APP_SPEED = "most_app_speed", "GPUs go to the apps whose speed grows most by them."
    MOST_LOSS_REDUCED = "most_loss_reduced", "GPUs go to the jobs whose loss falls most by them."
    LOSS_UNKNOWN = "loss_unknown", "The job has reported too few losses to predict the next ones."
    MARKET_ROUNDS = "market_rounds", "The rounds of the window that the job has bought, and its estimated fairness."
    MARKET_REFUSES = "market_refuses", "The job cannot be planned, and runs where others leave GPUs free."
    WORK_UNKNOWN = "work_unknown", "How long the job trains is not known; rounds are shared as if it were half done."
    MOST_TIME_SAVED = "most_time_saved", "GPUs go to the jobs that save the most time by them."
    SPEED_UNKNOWN = "speed_unknown", "The job's speed or remaining work is not known, so it grows last."
    WAITS_BEHIND = "waits_behind", "An earlier job waits for the same resources and must not be overtaken."
    WAITS_BEHIND_RESERVED = "waits_behind_reserved", "An earlier job has resources reserved and must not be delayed."
    BACKFILLED = "backfilled", "The job starts before an earlier one, which it does not delay."
    EXPLORES = "explores", "The job runs on GPUs that nobody else can use, to measure its speed there."
    CPU_ONLY = "cpu_only", "The job needs no GPU and runs where CPUs are free."
    NEXT_ROUND = "next_round", "No round has decided about the job yet."

    # Trials of an app, which its tuner holds or ends.
    TRIAL_CAPPED = "trial_capped", "The tuner of the trial's app gives it fewer GPUs than it can use, for now."
    TRIAL_PHASE_DONE = "trial_phase_done", "The trial has done its phase and waits for the bracket's other trials."
    TRIAL_OUTRANKED = "trial_outranked", "Better trials continue into the next phase, and this one is ended."
    TRIAL_WITHOUT_LOSS = "trial_without_loss", "The trial has reported no finite loss, so it ranks last and is ended."
    TRIAL_BELOW_MEDIAN = "trial_below_median", "The trial's best loss is worse than the median of the others' averages."
    TRIAL_CANNOT_WIN = "trial_cannot_win", "Even at best the trial cannot reach what another one has reached."
    TRIAL_DIVERGED = "trial_diverged", "The trial's latest loss is not finite."
    ENDED_BY_DRIVER = "ended_by_driver", "The driver of the trial's app has ended it."
    TUNER_UNUSABLE = "tuner_unusable", "The app runs without the tuner that its tags name."
    ORDER_FOR_STRANGER = "order_for_stranger", "The app's driver names a job that is none of the app's trials."

    # Auctions of GPU leases among apps.
    LEASE_WON = "lease_won", "The job's app won GPUs in an auction, for the time of a lease."
    LEASE_LEFTOVER = "lease_leftover", "The job's app was given GPUs that an auction left."
    LEASE_AT_FIRST = "lease_at_first", "The job's app ran when the policy began, and has a lease on what it holds."
    OUTBID = "outbid", "The job's app bid in the latest auction and won nothing."
    DID_NOT_BID = "did_not_bid", "Other apps are worse off than the job's app, and they alone bid."
    APP_DIVIDES = "app_divides", "The job's app has GPUs for other members, or none was free for an auction."
    AUCTION_PENDING = "auction_pending", "An auction is being held in the background."
    APP_NOT_ADMITTED = "app_not_admitted", "The admitted apps ask for more GPUs than the admission threshold."

    # Shares of time.
    TIME_SHARE_TURN = "time_share_turn", "By its share of time the job is due, so it runs this round."
    TIME_SHARE_QUANTUM = "time_share_quantum", "The job's run is within its quantum, so it keeps its GPUs."
    TIME_SHARE_WAIT = "time_share_wait", "By their shares of time others are due first, or are within their quantum."
    TIME_SHARES_DEGRADED = (
        "time_shares_degraded",
        "The policy's program could not be solved, so time shares come from a substitute.",
    )
    TYPES_IN_TURN_EXCLUDE = "types_in_turn_exclude", "The parameter types_in_turn names no GPU type of the job."

    # The job keeps its allocation.
    RUNS_TO_END = "runs_to_end", "The policy lets the job run to its end."
    NOT_PREEMPTIBLE = "not_preemptible", "The job cannot be preempted, so it runs to its end."
    NODES_CLOSED = "nodes_closed", "The job runs on: its nodes accept no other jobs."
    NO_NODE_AGAIN = "no_node_again", "The job runs on: no node would accept it again."

    # Actions.
    STARTS = "starts", "The job is released for a placement."
    MOVES = "moves", "The job is stopped to restart on another placement."
    PREEMPTED_FOR = "preempted_for", "The job's resources go to other jobs."
    BATCH_NOT_DECLARED = "batch_not_declared", "The tag lets the batch size change; no trainer has declared one yet."
    BATCH_WITHOUT_CONSENT = "batch_without_consent", "The tag lets the batch size change; the script does not."
    BATCH_WITHOUT_TAG = "batch_without_tag", "The script lets the batch size change; the tag does not."
    BATCH_WITHOUT_NOISE = "batch_without_noise", "The batch size cannot grow: the gradient noise is not known."
    BATCH_OF_SCRIPT = "batch_of_script", "The script changes its batch size by a rule of its own."
    BATCH_OF_NEXT_RUN = "batch_of_next_run", "The wanted batch plan is that of the job's next run."
    BATCH_AWAITS_TRAINER = "batch_awaits_trainer", "The trainer that is to take up the batch plan has not started."
    BATCH_AWAITS_BOUNDARY = "batch_awaits_boundary", "The trainer has not reported steps with the wanted batch plan."
    BATCH_CHANGES = "batch_changes", "The running trainer is asked to take up another batch plan."
    NOT_ITS_TURN = "not_its_turn", "The round gives the job nothing."
    WAS_TO_LEAVE = "was_to_leave", "A stop was decided earlier and has to be sent again."
    STOP_UNANSWERED = "stop_unanswered", "The trainer did not answer a stop request within the grace time."
    OWNER_COULD_RELEASE = "owner_could_release", "The job's hold is one that its owner could release early."
    RELEASED_BY_OTHERS = "released_by_others", "Somebody other than metasched released the job."
    PLACE_CHANGED = "place_changed", "The released job's placement is now another one."
    NOW_ALONE = "now_alone", "The job was released for half of each GPU and is now to have whole ones."
    NOW_SHARES = "now_shares", "The job was released for whole GPUs and is now to share them."
    NOT_STARTED_IN_TIME = "not_started_in_time", "Slurm did not start the released job within its time."
    CPUS_FREE = "cpus_free", "The suspended job's CPUs are free again."

    # Two jobs on the same GPUs: who restarts, and time-slicing.
    GPU_GIVEN_AWAY = "gpu_given_away", "Slurm gave the job's GPU to another job."
    CO_RUNNER_CHANGED = "co_runner_changed", "The job no longer shares GPUs with this co-runner."
    HOLDS_WHOLE_GPU = "holds_whole_gpu", "The job is to share its GPU, of which it holds the whole."
    ON_OTHER_GPU = "on_other_gpu", "The job is to share a co-runner's GPU and holds another one."
    CO_RUNNER_CANNOT_JOIN = "co_runner_cannot_join", "The co-runner could not be started on the job's GPU."
    HALF_GPU_TAKEN_FOR_PAIR = "half_gpu_taken_for_pair", "Slurm would put one of a new pair on the job's GPU."
    HALF_GPU_TAKEN_FOR_WHOLE = "half_gpu_taken_for_whole", "Slurm would give the job's GPU whole to another job."
    TIME_SLICING_BEGINS = "time_slicing_begins", "Time-slicing of two jobs begins; this one is suspended first."
    TIME_SLICING_ENDS = "time_slicing_ends", "The job's time-slicing has ended."
    SLICE_BEGINS = "slice_begins", "The job's time slice begins; the co-runner's is over."
    SLICE_ENDS = "slice_ends", "The job's time slice is over; the co-runner's begins."
    BOTH_SUSPENDED = "both_suspended", "Both jobs of a pair are suspended, so one is resumed."

    ENDED = "ended", "The job has ended."


MEASURING: Mapping[str, str] = {
    str(code): code.meaning
    for code in (
        *(Code.TRIAL_PHASE_DONE, Code.TRIAL_OUTRANKED, Code.TRIAL_WITHOUT_LOSS, Code.TRIAL_BELOW_MEDIAN),
        *(Code.TRIAL_CANNOT_WIN, Code.TRIAL_DIVERGED, Code.GOODPUT_SPEEDUP, Code.SIZE_FAILED),
        *(Code.LEASE_WON, Code.LEASE_LEFTOVER, Code.OUTBID, Code.DID_NOT_BID),
    )
}
"""Codes whose facts or words tell a job's loss, speed, progress, batch size, fairness or failures, with their meaning.
"""


EXACT_BELOW = 100
"""Below this number, a position in a queue and the queue's length are told exactly."""


class Reason(NamedTuple):
    """Why a job runs, waits or is acted on.

    Attributes:
        code: a ``Code``, or a code of a third party's policy.
        facts: names and values, in a fixed order for each code; no more precise than their words, since every change
            is a row of the history.
        also: further reasons, none of which has further reasons itself.
    """

    code: str
    facts: tuple[tuple[str, Fact], ...] = ()
    also: tuple[Reason, ...] = ()

    @classmethod
    def of(cls, code: str, /, **facts: Fact) -> Reason:
        """Return the reason with a code and its facts."""
        return cls(code, tuple(facts.items()))

    @classmethod
    def of_position(cls, code: str, position: int, length: int, also: tuple[Reason, ...] = ()) -> Reason:
        """Return the reason of a job's position in a queue, with further reasons.

        From ``EXACT_BELOW`` on, a position has two significant digits and is told without the queue's length: else each
        job that comes or goes would change the reasons of thousands.

        Args:
            code: of the kind of queue.
            position: 1 for the first job.
            length: number of jobs in the queue; from ``EXACT_BELOW`` on, two significant digits of it are told.
            also: further reasons, which have none themselves.
        """
        if position >= EXACT_BELOW:
            return cls(code, (("position", _approximate(position)),), also)
        return cls(code, (("position", position), ("length", _approximate(length))), also)

    @classmethod
    def text(cls, words: str, /) -> Reason:
        """A reason of words alone, for policies of other packages and what older versions stored."""
        return cls(Code.TEXT, (("text", words),))

    def and_also(self, *others: Reason) -> Reason:
        """Return this reason with the others added after its present further reasons."""
        more = [part for other in others for part in other.parts]
        return Reason(self.code, self.facts, (*self.also, *more))

    @property
    def parts(self) -> tuple[Reason, ...]:
        """This reason alone, then the further ones."""
        return (Reason(self.code, self.facts), *self.also) if self.also else (self,)


def _approximate(number: int) -> int:
    if number < EXACT_BELOW:
        return number
    unit: int = 10 ** (len(str(number)) - 2)
    return (number + unit // 2) // unit * unit


def to_json(reason: Reason) -> dict[str, Any]:
    """The reason as JSON-compatible data: ``code``, and ``facts`` and ``also`` where there are any."""
    data: dict[str, Any] = {"code": str(reason.code)}
    if reason.facts:
        data["facts"] = dict(reason.facts)
    if reason.also:
        data["also"] = [to_json(other) for other in reason.also]
    return data


def from_json(data: Any) -> Reason:
    """Return the reason that ``to_json`` was given; any other data becomes a reason of its text."""
    match data:
        case {"code": str(code)} if code and _is_reason(data):
            also = tuple(part for other in data.get("also", ()) for part in from_json(other).parts)
            return Reason(code, tuple((name, _fact(value)) for name, value in data.get("facts", {}).items()), also)
        case str():
            return Reason.text(data)
        case _:
            return Reason.text(json.dumps(data, default=str))


def without_strangers(reason: Reason, known: Collection[str]) -> Reason:
    """Return a reason that names no other jobs than known ones.

    Args:
        reason: the reason.
        known: Slurm job ids that may be named.
    """
    first, *others = (_without_strangers(part, known) for part in reason.parts)
    return first.and_also(*others)


def _without_strangers(reason: Reason, known: Collection[str]) -> Reason:
    facts = dict(reason.facts)
    for name in ("job", "co_runner"):
        if facts.get(name) is not None and facts[name] not in known:
            facts[name] = "of another user"
    jobs = facts.get("jobs")
    if isinstance(jobs, tuple | list):
        named = tuple(job for job in jobs if job in known)
        more = facts.get("more")
        hidden = len(jobs) - len(named) + (more if isinstance(more, int) else 0)
        facts |= {"jobs": named or ("another user's",), "more": hidden if named else max(hidden - 1, 0)}
    return Reason(reason.code, tuple(facts.items()))


def without_measures(reason: Reason) -> Reason:
    """Return a reason for people who may not see the job's loss, speed, progress, batch size and fairness.

    A reason that tells one of them keeps its code, and has the code's meaning as its words.
    """
    first, *others = map(_without_measures, reason.parts)
    return first.and_also(*others)


def _without_measures(reason: Reason) -> Reason:
    if reason.code == Code.MARKET_ROUNDS:
        return Reason(reason.code, tuple((name, None if name == "rho" else value) for name, value in reason.facts))
    meaning = MEASURING.get(reason.code)
    if meaning is None:
        return reason
    return Reason.of(reason.code, text=f"{meaning[0].lower()}{meaning[1:].rstrip('.')}")


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def to_text(reason: Reason) -> str:
    """The reason as a line of JSON, for a text column."""
    return _encode(to_json(reason))


def from_text(text: str) -> Reason:
    """Return the reason that ``to_text`` was given; a plain sentence of older versions becomes a reason of its text."""
    if not text.startswith('{"code":'):
        return Reason.text(text)
    try:
        return from_json(json.loads(text))
    except (ValueError, RecursionError):
        return Reason.text(text)


def _is_reason(data: Mapping[str, Any]) -> bool:
    return isinstance(data.get("facts", {}), dict) and isinstance(data.get("also", []), list)


def _fact(value: Any) -> Fact:
    if isinstance(value, (list, tuple)):
        return tuple(map(_fact, value))
    return value if isinstance(value, (str, int, float, type(None))) else json.dumps(value, default=str)
