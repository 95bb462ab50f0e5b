"""A site with everything that a page may have to show: jobs of all states, long names, drained nodes, empty parts."""

import time

from metasched.shared_dir.published_status import JobStatus, NodeStatus, Status

USERS = ("ann", "bob", "chloe", "dmitri-alexandrovich", "eve")
NAMES = ("bert-large", "gpt2", "resnet50", "a-very-long-name-" * 6, "<script>alert(1)</script>", "ヴィジョン", "x")
REASONS = {
    "running": "least attained service: 3 h 12 min of GPU time",
    "held": "needs 8 GPUs of type a100; 4 are free",
    "queued": "starts on 4 GPUs of type h100 on n3",
    "stopping": "preempted for 1042, 1051 and 2 more",
    "suspended": "the turn of job 1007",
}


def make_job(number, nodes, status, now):
    gpus = sum(nodes.values()) or 2 ** (number % 4)
    runs = 0 if status in {"held", "queued"} else 1 + number % 5
    return JobStatus(
        uid=f"u{number:05}",
        slurm_job_id=str(1000 + number),
        name=NAMES[number % len(NAMES)],
        user=USERS[number % len(USERS)],
        account=("vision", "language", None)[number % 3],
        status=status,
        gpus=gpus,
        min_gpus=max(1, gpus // 2) if number % 4 == 0 else gpus,
        max_gpus=gpus,
        preempt="requeue",
        reason=REASONS[status],
        nodes=nodes,
        gpu_type=None if not nodes else "h100" if number % 3 else "a100",
        submitted=now - 600.0 * (number + 1),
        run_started=now - 300 if runs else None,
        runs=runs,
        preemptions=max(0, runs - 1),
        attained_service=1000.0 * number,
        ran_seconds=300.0 * runs,
        waited_seconds=137.0 * (number % 50),
        progress_steps=120.0 * number if runs else None,
        total_steps=120 * (number + 30),
        steps_per_second=3.2 if runs else None,
        loss=0.7 if runs else None,
        world_sizes=(4,) * runs,
        error="metasched:gpus=many: gpus must be a number" if number == 13 else None,
    )


def make_site(nodes=24, waiting=80, gpus=8, now=None):
    """A status: most nodes busy, some free, drained, or with half a job."""
    now = time.time() if now is None else now
    jobs, found = [], []
    for number in range(nodes):
        name = f"n{number + 1:03}"
        drained, free = number % 12 == 5, number % 12 == 7
        states = ("running", "running", "running", "stopping", "suspended")
        if not drained and not free:
            sizes = ((gpus,), (gpus // 2, gpus // 2), (gpus // 4, gpus // 2), (1, 1, gpus // 2))[number % 4]
            for size in sizes:
                jobs.append(make_job(len(jobs), {name: size}, states[len(jobs) % len(states)], now))
        used = sum(job.nodes.get(name, 0) for job in jobs)
        reason = "maintenance of the cooling loop until Friday, ask ops@example.org" if drained else ""
        found.append(NodeStatus(name, "a100" if number < nodes // 2 else "h100", gpus, used, not drained, reason))
    jobs += [make_job(len(jobs) + i, {}, "queued" if i % 9 == 0 else "held", now) for i in range(waiting)]
    return Status(
        published=now,
        poll_seconds=2.0,
        cluster="hilbert",
        host="head",
        pid=4711,
        policy="las",
        round=1284,
        round_at=now - 90,
        next_round=now + 210,
        slurm="ok",
        nodes=tuple(found),
        jobs=tuple(jobs),
        jobs_version=int(now * 1000),
    )
