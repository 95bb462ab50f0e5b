from metasched.model import Job, Node, Placement, Snapshot, Status
from metasched.simulator.records import Settings
from metasched.simulator.what_if import Estimate, forecast
from metasched.throughput.curve import ran
from policies.baselines.fifo import Fifo
from policies.baselines.gandiva import Gandiva
from policies.baselines.las import Las

NOW = 10_000.0
NODE = Node("n1", "v100", 4, 64, 1 << 40)
SETTINGS = Settings(round_seconds=100.0, min_round_seconds=0.0)


def job(uid, submitted, gpus=4, **facts):
    return Job(uid, uid, uid, "ann", submitted, gpus, gpus, gpus, **facts)


def running(uid, submitted, seconds, gpus=4, **facts):
    """A job that has run for so long."""
    return job(
        uid,
        submitted,
        gpus,
        status=Status.RUNNING,
        placement=Placement(("n1",), gpus, "v100"),
        run=1,
        run_started=NOW - seconds,
        attained={"v100": gpus * seconds},
        ran_seconds=seconds,
        **facts,
    )


def look(*jobs):
    return Snapshot(NOW, 7, 100.0, (NODE,), jobs)


def known(**left):
    """Seconds that are left of each job at its size, after 1000."""
    return {uid: Estimate(ran(1000.0 + seconds, 4), 1000.0, "known") for uid, seconds in left.items()}


def test_a_running_job_goes_on_and_the_next_follows():
    """What runs ends when its work does, without a restart; who waits starts then."""
    found = forecast(look(running("a", 0.0, 1000.0), job("b", 5.0)), known(a=300.0, b=200.0), {"f": Fifo()}, SETTINGS)
    assert [one.ends["f"] for one in found] == [NOW + 300.0, NOW + 500.0]
    assert [one.preemptions["f"] for one in found] == [0, 0]


def test_policies_differ():
    """Under LAS the job that has had much is stopped for one that has had nothing; under FIFO it is not."""
    policies = {"f": Fifo(), "l": Las(Las.Parameters(queue_thresholds_gpu_seconds=(100.0,)))}
    old = running("a", 0.0, 1000.0, preemptions=2)
    one, other = forecast(look(old, job("b", 5.0)), known(a=300.0, b=50.0), policies, SETTINGS)
    assert (one.preemptions, other.ends) == ({"f": 0, "l": 1}, {"f": NOW + 350.0, "l": NOW + 50.0})
    assert one.ends["l"] == NOW + 350.0


def test_a_restart_costs():
    """Who is started pays for it; who goes on does not."""
    settings = Settings(round_seconds=100.0, min_round_seconds=0.0, start_seconds=60.0, restart_seconds=60.0)
    jobs = look(running("a", 0.0, 1000.0), job("b", 5.0))
    found = forecast(jobs, known(a=300.0, b=200.0), {"f": Fifo()}, settings)
    assert [one.ends["f"] for one in found] == [NOW + 300.0, NOW + 560.0]


def test_blocked_jobs_are_left_out():
    """A job that must not start is no part of the forecast."""
    jobs = look(running("a", 0.0, 1000.0), job("b", 5.0, blocked="it waits for job 3"))
    assert [one.job.uid for one in forecast(jobs, known(a=300.0), {"f": Fifo()}, SETTINGS)] == ["a"]


def test_a_job_that_fits_nowhere_never_ends():
    """It is shown without an end."""
    found = forecast(look(job("a", 0.0, gpus=8)), known(a=300.0), {"f": Fifo()}, SETTINGS)
    assert found[0].ends == {"f": None}


def test_a_policy_that_never_lets_jobs_start_is_given_up():
    """Where jobs are moved about faster than they restart, the simulation ends, and the jobs do not."""
    settings = Settings(round_seconds=3.0, min_round_seconds=0.0, restart_seconds=60.0)
    policy = Las(Las.Parameters(queue_thresholds_gpu_seconds=(1.0,), promote_knob=1.0))
    jobs = look(running("a", 0.0, 5.0), job("b", NOW))
    found = forecast(jobs, known(a=3000.0, b=3000.0), {"l": policy}, settings)
    assert None in {one.ends["l"] for one in found}


def test_two_on_the_same_gpus_stay_together():
    """Where the live cluster shares GPUs; nobody is stopped for it."""
    pair = [running(uid, 0.0, 1000.0, shares_with=other) for uid, other in ("ab", "ba")]
    view = Snapshot(NOW, 7, 100.0, (NODE,), tuple(pair), sharing=True)
    found = forecast(view, known(a=300.0, b=300.0), {"g": Gandiva()}, SETTINGS)
    assert [one.preemptions["g"] for one in found] == [0, 0]
    assert all(one.ends["g"] is not None for one in found)
