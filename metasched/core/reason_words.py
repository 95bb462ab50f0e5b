"""Reasons in English, for the edge alone: the CLI, the published status, leases and logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from metasched.core.reasons import EXACT_BELOW, Code, Reason

_TEENS = range(11, 14)
_SUBSTITUTES = {
    "robust_method": "the solver's more robust method",
    "simple_program": "a simpler program",
    "equal_shares": "equal shares of all GPUs",
}
_EMPTY = "even empty, the nodes that accept jobs"


def words(reason: Reason) -> str:
    """The reason and its further reasons as one sentence without a full stop.

    A code without words here is rendered as its fact ``text``, or else as its name and facts.
    """
    if not reason.also:
        return _words_of(reason)
    return "; ".join(map(_words_of, reason.parts))


def _words_of(reason: Reason) -> str:
    found = WORDS.get(reason.code)
    facts = dict(reason.facts)
    if found is not None:
        try:
            return found.format(**facts) if isinstance(found, str) else found(**facts)
        except (TypeError, ValueError, KeyError, AttributeError):
            pass  # facts of another version
    if "text" in facts:
        return str(facts["text"])
    told = ", ".join(f"{name} {value}" for name, value in facts.items())
    return f"{reason.code}: {told}" if told else str(reason.code)


def counted(number: int, noun: str) -> str:
    """A number with its noun in the singular or plural: ``1 GPU``, ``2 GPUs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ordinal(n: int) -> str:
    """A number as a position: 1st, 2nd, 3rd, 4th, ..."""
    suffix = "th" if n % 100 in _TEENS else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


def _position(position: int, length: int | None) -> str:
    if length is None:
        return f"about {ordinal(position)}"
    return f"{ordinal(position)} of {'about ' if length >= EXACT_BELOW else ''}{length}"


def _kind(gpu_types: Sequence[str]) -> str:
    return f" of type {' or '.join(gpu_types)}" if gpu_types else ""


def _are(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


def _place(gpus: int, gpu_type: str | None, nodes: Sequence[str], uneven: Sequence[int]) -> str:
    """``4 GPUs of type v100 on n1, n2``, with the number on each node where they differ."""
    pairs = zip(nodes, uneven, strict=True) if uneven else ()
    names = ", ".join(f"{node} ({count})" for node, count in pairs) or ", ".join(nodes)
    return names if gpu_type is None else f"{counted(gpus, 'GPU')} of type {gpu_type} on {names}"


def _starts(gpus: int, gpu_type: str | None, nodes: Sequence[str], uneven: Sequence[int], co_runner: str | None) -> str:
    shared = "" if co_runner is None else f", on the same GPUs as job {co_runner}"
    return f"starts on {_place(gpus, gpu_type, nodes, uneven)}{shared}"


def _market_rounds(rounds: int, window: int, first: int | None, rho: float | None) -> str:
    """``runs in 5 of the next 20 rounds, now first; heads for 0.9 times its fair finish time``."""
    when = "" if first is None else ", from now on" if first == 0 else f", from round {first + 1} on"
    found = f"planned for {rounds} of the next {window} rounds{when}"
    return found if rho is None else f"{found}; heads for {rho:g} times its fair finish time"


def _quota_reached(quota: str, gpus_left: int | None) -> str:
    left = "is reached" if gpus_left is None else f"leaves it {counted(gpus_left, 'GPU')}"
    return f"the limit {quota} {left}"


def _waits_for_gpus(
    gpus: int, gpu_types: Sequence[str], free: int, cpus: int | None = None, cpus_free: int | None = None
) -> str:
    bound = "" if cpus is None else f", with {cpus_free} of {cpus} CPUs"
    return f"needs {counted(gpus, 'GPU')}{_kind(gpu_types)}; {_are(free)} free{bound}"


def _waits_for_cpus(nodes: int, cpus: int, memory: int, cpus_free: int) -> str:
    of_memory = f" and {_gib(memory)} of memory" if memory else ""
    each = " each" if nodes > 1 else ""
    needed = f"{counted(nodes, 'node')} with {counted(cpus, 'free CPU')}{of_memory}{each}"
    return f"needs {needed}; {counted(cpus_free, 'CPU')} {'is' if cpus_free == 1 else 'are'} free in all"


def _free_but_not(free: int, gpu_types: Sequence[str], missing: str) -> str:
    return f"{counted(free, 'GPU')}{_kind(gpu_types)} {'is' if free == 1 else 'are'} free, but not on nodes {missing}"


def _gpus_fragmented(free: int, gpu_types: Sequence[str], shapes: Sequence[Sequence[int]]) -> str:
    ways = " or ".join(f"{g} on {counted(k, 'node')}{' each' if k > 1 else ''}" for k, g in shapes)
    return _free_but_not(free, gpu_types, f"that can take {ways}")


def _uneven_spread(gpus: int, nodes: int | None, max_nodes: int | None) -> str:
    over = f"exactly {counted(nodes, 'node')}" if nodes is not None else f"at most {max_nodes} nodes"
    return f"{counted(gpus, 'GPU')} cannot be spread evenly over {over}"


def _no_node_accepts(
    gpus: int, gpu_types: Sequence[str], features: Sequence[str], partition: str, reservations: Sequence[str]
) -> str:
    wanted = [f"GPUs{_kind(gpu_types)}"] if gpus else []
    wanted += [f"feature {feature}" for feature in features]
    having = f" with {', '.join(wanted)}" if wanted else ""
    where = [f"partition {partition}"] if partition else []
    where += [f"reservation {name}" for name in reservations]
    return f"no node{having}{' in ' if where else ''}{' and '.join(where)} accepts jobs now"


def _exceeds_nodes(gpus: int, gpu_types: Sequence[str], nodes: int | None, cpus: int | None) -> str:
    if not gpus and nodes is not None:
        return f"{_EMPTY} could not give it {counted(nodes, 'node')} with {cpus} CPUs"
    return f"{_EMPTY} could not give it {counted(gpus, 'GPU')}{_kind(gpu_types)}"


def _reservation_ahead(nodes: int) -> str:
    return f"on {counted(nodes, 'node')} that would suit it a reservation begins before its time limit (--time) is over"


def _batch_changes(per_gpu: int, accumulation: int, global_batch: int | None) -> str:
    passes = "" if accumulation == 1 else f" in {accumulation} micro-batches"
    total = "" if global_batch is None else f", {global_batch} in all"
    return f"its batch becomes {counted(per_gpu, 'sample')} per GPU{passes}{total}"


def _goodput_speedup(speedup: float, batch: int | None, efficiency: int | None) -> str:
    tuned = "" if batch is None else f", with a batch of {batch} at {efficiency}% of the first batch's efficiency"
    return f"its goodput is {speedup:g} times that of a fair share{tuned}"


def _outranked(rank: int, trials: int, kept: int, steps: float, loss: float) -> str:
    place = f"{ordinal(rank)} of {counted(trials, 'trial')}"
    return f"its loss {loss:g} at step {steps:g} ranks {place}, of which {kept} continue"


def _bids(bids: Sequence[tuple[int, float | None]]) -> str:
    """``bid for 8 GPUs (1.02) and 4 (1.17)``: GPUs, and rho with them."""
    if not bids:
        return "bid for nothing"
    (gpus, rho), *others = bids
    told = [f"{counted(gpus, 'GPU')} ({_rho(rho)})", *(f"{fewer} ({_rho(other)})" for fewer, other in others)]
    return f"bid for {' and '.join([', '.join(told[:-1]), told[-1]] if others else told)}"


def _rho(rho: float | None) -> str:
    return "infinite" if rho is None else f"{rho:g}"


def _lease_won(
    *,
    app: str,
    rho: float | None,
    bids: Sequence[tuple[int, float | None]],
    won: int,
    gpus: int,
    nodes: Sequence[str],
    minutes: float,
    of: float,
    paid: float,
) -> str:
    more = "" if won == gpus else f", {gpus} with left-overs,"
    lease = f"on {', '.join(nodes)} for {minutes:g} of {of:g} minutes, paid {paid:g}"
    return f"app {app}: rho {_rho(rho)}, {_bids(bids)}, won {won}{more} {lease}"


def _shares(shares: Sequence[tuple[str, int]]) -> str:
    if not shares:
        return "it has no share of time now"
    return f"its share of time is {', '.join(f'{percent}% of {kind}' for kind, percent in shares)}"


def _numbers(numbers: Sequence[int]) -> str:
    """``1,2,4``; of many numbers in a row the first and the last, as in ``1-3,5-64``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    each = (f"{span[0]}-{span[-1]}" if len(span) > 2 else ",".join(map(str, span)) for span in spans)  # noqa: PLR2004
    return ",".join(each)


WORDS: Mapping[str, str | Callable[..., str]] = {
    Code.TEXT: "{text}",
    Code.BAD_TAG: "it cannot be scheduled: {error}",
    Code.UNSTAMPED: "Slurm does not let metasched stamp it: install job_submit.lua, which stamps jobs as they are "
    "submitted, or give metasched's account Slurm's Administrator role",
    Code.HELD_BY_OWNER: "its owner submitted it with --hold (`scontrol release` lets it go)",
    Code.DEPENDENCY: "it waits for another job ({dependency})",
    Code.BEGIN_TIME: "its begin time (--begin) is still to come",
    Code.START_DEFERRED: "Slurm did not start it when it was released last; it is tried again later",
    Code.NOT_LAUNCHED: lambda runs: (
        f"its last {f'{runs} runs' if runs > 1 else 'run'} ended before a trainer had started (Slurm did not start the "
        "script, srun created no step, or a node was lost); it is tried again later"
    ),
    Code.SLURM_REASON: "Slurm's reason: {reason}",
    Code.RESERVATION_OVER: "its reservation {reservation} is over, or is not there",
    Code.RESERVATION_NOT_BEGUN: "its reservation {reservation} has not begun yet",
    Code.RESERVATION_DENIES_USER: "its reservation {reservation} does not admit user {user}",
    Code.QUOTA_TOO_SMALL: "it needs {gpus} GPUs, and the limit is {quota}",
    Code.SUSPENDED_BY_OTHERS: "somebody else suspended it, and has to resume it",
    Code.ARRAY_TOO_LARGE: "its array has {tasks} tasks, and [intake] limits allow {most}: submit smaller arrays",
    Code.TOO_MANY_LIVE_JOBS: "{user} has {most} live jobs, as many as [intake] live_jobs allows; it is taken in when "
    "others have ended",
    Code.INTAKE_CONTINUES: "many jobs arrived at once; the next polls take it in",
    Code.QUOTA_REACHED: _quota_reached,
    Code.QUOTA_CUT: lambda quota, gpus, gpus_left: f"of {counted(gpus, 'GPU')} the limit {quota} leaves it {gpus_left}",
    Code.QUOTA_ONE_TYPE: "limits leave it GPUs of type {gpu_type} alone",
    Code.SIZE_NOT_ALLOWED: lambda gpus, rounded, sizes: (
        f"it cannot run on {counted(gpus, 'GPU')} (sizes={_numbers(sizes)}), so {rounded} were granted"
    ),
    Code.SIZE_FAILED: lambda exit_code, gpus, known_good: (
        f"its script failed with exit code {exit_code} in its first steps on {counted(gpus, 'GPU')}; put back to "
        f"{counted(known_good, 'GPU')}, where it trained last, and never again on {gpus}"
    ),
    Code.WAITS_FOR_GPUS: _waits_for_gpus,
    Code.WAITS_FOR_CPUS: _waits_for_cpus,
    Code.GPUS_FRAGMENTED: _gpus_fragmented,
    Code.GPUS_WITHOUT_CPUS: lambda free, gpu_types: _free_but_not(free, gpu_types, "whose CPUs or memory suffice"),
    Code.UNEVEN_SPREAD: _uneven_spread,
    Code.NO_NODE_ACCEPTS: _no_node_accepts,
    Code.EXCEEDS_NODES: _exceeds_nodes,
    Code.EXCEEDS_PREEMPTIBLE_NODES: lambda gpus, gpu_types: (
        "without what non-preemptible jobs hold, the nodes that accept jobs could not give it "
        f"{counted(gpus, 'GPU')}{_kind(gpu_types)}"
    ),
    Code.RESERVATION_AHEAD: _reservation_ahead,
    Code.SUSPENDED_RESOURCES_TAKEN: lambda nodes: (
        f"it is suspended on {', '.join(nodes)}, cannot move, and there its resources are taken"
    ),
    Code.PLACE_NOT_IN_CLUSTER: "{node}, where it is to be, is not in the cluster",
    Code.PLACE_CLOSED: "{node}, where it is to be, accepts no jobs now",
    Code.PLACE_UNSUITABLE: "{node}, where it is to be, does not suit it",
    Code.PLACE_LACKS_GPUS: lambda node, gpus, free: (
        f"{node}, where it is to have {counted(gpus, 'GPU')}, has {free} free"
    ),
    Code.PLACE_LACKS_CPUS: "{node}, where it is to be, has too few free CPUs or too little memory",
    Code.PLACE_TAKEN: "the place where it is to be was taken",
    Code.SHARES_GPUS: "it runs on the same GPUs as job {co_runner}",
    Code.CO_RUNNER_CUT: "the job whose GPUs it was to share does not get all of them",
    Code.CO_RUNNER_DOES_NOT_FIT: "is to share the GPUs of job {co_runner}, but the nodes cannot hold both",
    Code.CO_RUNNER_UNPLACED: "is to share the GPUs of job {co_runner}, which has no place either",
    Code.CO_RUNNER_SUSPENDED: "it cannot share GPUs with job {co_runner} while one of them is suspended",
    Code.CO_RUNNER_FIXED: "neither it nor job {co_runner} can move",
    Code.DOES_NOT_FIT_WITH_CO_RUNNER: "the nodes of job {co_runner} cannot hold it too",
    Code.NO_NODES_SUIT_PAIR: "no nodes suit both it and job {co_runner}",
    Code.QUEUE_POSITION: lambda position, length=None: f"{_position(position, length)} in line",
    Code.PRIORITY_POSITION: lambda position, length=None: f"{_position(position, length)} by priority",
    Code.FAIR_FINISH_POSITION: lambda position, length=None: (
        f"{_position(position, length)} in line by when jobs would end under fair sharing"
    ),
    Code.UNKNOWN_DEMAND_POOL: "in the pool of jobs whose demand is not known, under fair sharing",
    Code.ATTAINED_SERVICE_QUEUE: "in queue {queue} of {queues} by the GPU time it has had",
    Code.SHORTEST_TIME: "shortest remaining time first",
    Code.SHORTEST_SERVICE: "shortest remaining GPU time first",
    Code.REMAINING_UNKNOWN: "after all whose remaining time is known",
    Code.GOODPUT_SPEEDUP: _goodput_speedup,
    Code.GOODPUT_GAINS_LESS: "other jobs gain more by the GPUs",
    Code.LEAST_SERVED_APP: "the app with the least GPU time first",
    Code.PLACEMENT_PREFERENCE: "apps first that several nodes slow down most",
    Code.MOST_APP_SPEED: "GPUs go to the app whose speed grows most by them",
    Code.MOST_LOSS_REDUCED: "GPUs go where the loss falls most",
    Code.LOSS_UNKNOWN: "too few losses are reported to predict the next ones",
    Code.MARKET_ROUNDS: _market_rounds,
    Code.MARKET_REFUSES: "it cannot be planned, because {why}: it runs where others leave GPUs free",
    Code.WORK_UNKNOWN: "how long it trains is not known, so it has rounds as if it were half done; declare its steps",
    Code.MOST_TIME_SAVED: "GPUs go where they save the most time",
    Code.SPEED_UNKNOWN: "its speed or its remaining work is not known, so it grows after the others, to what it asked "
    "for",
    Code.WAITS_BEHIND: "waits behind job {job}, which needs the same resources",
    Code.WAITS_BEHIND_RESERVED: "waits behind job {job}, which must not be delayed",
    Code.BACKFILLED: "backfilled",
    Code.TRIAL_CAPPED: lambda gpus: (
        f"its app's tuner gives it at most {counted(gpus, 'GPU')} while several trials live"
    ),
    Code.TRIAL_PHASE_DONE: "it has trained the {steps:g} steps of phase {phase} of {phases}, and waits until job {job} "
    "and the other trials have",
    Code.TRIAL_OUTRANKED: _outranked,
    Code.TRIAL_WITHOUT_LOSS: lambda rank, trials, kept, steps: (
        f"it has reported no finite loss by step {steps:g}, so it ranks {ordinal(rank)} of {counted(trials, 'trial')}, "
        f"of which {kept} continue"
    ),
    Code.TRIAL_BELOW_MEDIAN: "its best loss {loss:g} is worse than {median:g}, the median of the other trials' mean "
    "losses up to step {steps:g}",
    Code.TRIAL_CANNOT_WIN: "its loss may fall to {optimistic:g} by step {steps:g}, and another trial has reached "
    "{reached:g} already",
    Code.TRIAL_DIVERGED: "its loss at step {steps:g} is not finite, and other trials' are",
    Code.ENDED_BY_DRIVER: lambda words: f"its app's driver has ended it{f': {words}' if words else ''}",
    Code.TUNER_UNUSABLE: "its app runs without a tuner. {error}",
    Code.ORDER_FOR_STRANGER: lambda job, more: (
        f"its app's driver gives orders for job {job}{f' and {more} more' if more else ''}, none of the app's trials: "
        "they are ignored"
    ),
    Code.LEASE_WON: _lease_won,
    Code.LEASE_LEFTOVER: lambda app, rho, gpus, nodes, minutes: (
        f"app {app}: rho {_rho(rho)}, got {gpus} left over on {', '.join(nodes)} for {minutes:g} minutes"
    ),
    Code.LEASE_AT_FIRST: "its app ran when the policy began, and has {minutes:g} minutes from then on",
    Code.OUTBID: lambda app, rho, bids: f"app {app}: rho {_rho(rho)}, {_bids(bids)}, won nothing",
    Code.DID_NOT_BID: lambda app, rho, asked, apps: (
        f"app {app}: rho {_rho(rho)}; the {asked} worst off of {apps} apps bid, and it is not among them"
    ),
    Code.APP_DIVIDES: "app {app} has no GPUs for it now",
    Code.AUCTION_PENDING: "an auction is being held",
    Code.APP_NOT_ADMITTED: "its app is not admitted yet: those admitted ask for {asked} GPUs, and new ones wait from "
    "{most:g} times the {gpus} GPUs on",
    Code.EXPLORES: "on GPUs that nobody else can use, to learn how fast it is there",
    Code.CPU_ONLY: "it needs no GPU, and runs where CPUs are free",
    Code.NEXT_ROUND: "it waits for the next round",
    Code.TIME_SHARE_TURN: lambda gpu_type, shares: f"its turn on {gpu_type}: {_shares(shares)}",
    Code.TIME_SHARE_QUANTUM: lambda gpu_type, shares: f"within its quantum on {gpu_type}: {_shares(shares)}",
    Code.TIME_SHARE_WAIT: lambda shares: f"not its turn: {_shares(shares)}",
    Code.TIME_SHARES_DEGRADED: lambda substitute: (
        "the policy's program could not be solved, and time shares come from "
        f"{_SUBSTITUTES.get(substitute, substitute)}"
    ),
    Code.TYPES_IN_TURN_EXCLUDE: "not its turn: types_in_turn names none of its types",
    Code.RUNS_TO_END: "it runs to its end",
    Code.NOT_PREEMPTIBLE: "it runs to its end: it cannot be preempted",
    Code.NODES_CLOSED: "it runs on: its nodes accept no other jobs now",
    Code.NO_NODE_AGAIN: "it runs on: no node would take it again",
    Code.STARTS: _starts,
    Code.MOVES: lambda **place: f"moves to {_place(**place)}",
    Code.PREEMPTED_FOR: lambda jobs, more: f"preempted for {', '.join(jobs)}{f' and {more} more' if more else ''}",
    Code.BATCH_NOT_DECLARED: "its tag has batch=adaptive, and its script has declared no batch yet",
    Code.BATCH_WITHOUT_CONSENT: "its tag has batch=adaptive, and its script does not consent: give "
    "ctx.loader(..., max_batch=..., lr_scale=...)",
    Code.BATCH_WITHOUT_TAG: "its script lets the batch change, and its tag does not: submit it with batch=adaptive",
    Code.BATCH_WITHOUT_NOISE: "its gradient noise is not known, so the batch does not grow",
    Code.BATCH_OF_SCRIPT: lambda rule, count, most: (
        f"its script changes it{'' if rule is None else f' by the rule {rule}'}: regime {count}"
        f"{'' if most is None else f' of at most {most}'}"
    ),
    Code.BATCH_OF_NEXT_RUN: "it is the batch of its next run, on other GPUs",
    Code.BATCH_AWAITS_TRAINER: "its trainer has not started yet",
    Code.BATCH_AWAITS_BOUNDARY: "its trainer has not reported steps with it yet: it changes at a step boundary, beyond "
    "the data that is fetched already; a refusal is in the job's output",
    Code.BATCH_CHANGES: _batch_changes,
    Code.NOT_ITS_TURN: "it is not its turn",
    Code.WAS_TO_LEAVE: "its earlier stop request is sent again",
    Code.STOP_UNANSWERED: "it did not answer a stop within {seconds:g} s",
    Code.OWNER_COULD_RELEASE: "its owner could release it before its turn",
    Code.RELEASED_BY_OTHERS: "it was released by somebody else",
    Code.PLACE_CHANGED: lambda **place: f"its place is now {_place(**place)}",
    Code.NOW_ALONE: "it is now alone on its GPU",
    Code.NOW_SHARES: "it is now to share its GPU",
    Code.NOT_STARTED_IN_TIME: "it did not start within {seconds:g} s",
    Code.CPUS_FREE: "its CPUs are free again",
    Code.GPU_GIVEN_AWAY: "Slurm has given its GPU to another job",
    Code.CO_RUNNER_CHANGED: "no longer shares the GPU of job {co_runner}",
    Code.HOLDS_WHOLE_GPU: "is to share its GPU with job {co_runner}, and has the whole of it",
    Code.ON_OTHER_GPU: "is to share the GPU of job {co_runner}, and holds another",
    Code.CO_RUNNER_CANNOT_JOIN: "is to share a GPU with job {co_runner}, which could not come to this one",
    Code.HALF_GPU_TAKEN_FOR_PAIR: "has half a GPU, on which Slurm would put job {job}",
    Code.HALF_GPU_TAKEN_FOR_WHOLE: "has half a GPU, which Slurm would give to job {job}",
    Code.TIME_SLICING_BEGINS: "takes turns with job {co_runner}",
    Code.TIME_SLICING_ENDS: "it no longer takes turns",
    Code.SLICE_BEGINS: "its turn, after job {co_runner}",
    Code.SLICE_ENDS: "the turn of job {co_runner}",
    Code.BOTH_SUSPENDED: "its turn: job {co_runner} is suspended, too",
    Code.ENDED: "it ended as {state}",
}
