"""The contract tests of SlurmClient, run on the fake and on a real Slurm.

A test file gives the class a fixture ``world``: an empty cluster of 4 nodes of 4 v100 (n1 to n4, 16 CPUs, 64000 MiB
each, 2 shards for each GPU; n1 and n2 on switch s1, n3 and n4 on switch s2), its client, and methods that act as a
job's owner and as time. A second one, ``farm``, has 4 nodes for each form of request.
"""

from dataclasses import replace

import pytest

from metasched.core.model import Hold
from metasched.slurm.client import OUT_OF_REACH, Geometry, JobState
from metasched.slurm.errors import (
    InvalidArgumentError,
    NoSuchJobError,
    SlurmCommandError,
    WrongJobStateError,
)

MIB = 2**20
ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT)

# What users write, and the GPU type that the request names.
FORMS = {
    "gres": (["--gres=gpu:2"], None),
    "typed": (["--gres=gpu:v100:2", "-n2", "-c2"], "v100"),
    "gpus": (["--gpus=2"], None),
    "gpus-nodes": (["--gpus=4", "-N2"], None),
    "per-node": (["--gpus-per-node=1", "-N2"], None),
    "tasks-per-node": (["--ntasks-per-node=2", "--gres=gpu:2", "--mem=2G"], None),
    "mem-per-cpu": (["--gres=gpu:2", "--mem-per-cpu=100M"], None),
    "per-gpu": (["--gpus=v100:2", "--cpus-per-gpu=2", "--mem-per-gpu=1G"], "v100"),
    "per-task": (["--gpus-per-task=1", "-n2"], None),
    "cpu": (["-N2", "-n4"], None),
    "array": (["--gres=gpu:2", "--array=3"], None),
}
# Nodes (counted in the form's own four) and GPUs on each: up, down, sideways, each after a requeue.
SHAPES = [((1,), 1), ((0,), 4), ((1, 2), 2), ((0, 1, 2, 3), 1), ((3,), 2)]


def geometry(nodes, gpus, *, cpus=2, memory=700 * MIB, gpu_type=None, delay=0, tasks_per_unit=1):
    """Return a Geometry with CPUs and memory for each GPU (without GPUs: for each node)."""
    units = max(gpus, 1)
    return Geometry(
        nodes=tuple(nodes),
        gpus_per_node=gpus,
        tasks=len(nodes) * units * tasks_per_unit,
        cpus=len(nodes) * units * cpus,
        memory_per_node=memory * units,
        delay=delay,
        gpu_type=gpu_type,
    )


def signal_one(client, slurm_job_id, signal):
    """Raise the error of a signal for one job."""
    if (error := client.signal([slurm_job_id], signal).get(slurm_job_id)) is not None:
        raise error


class ClientContract:
    """The tests; one test class for each client inherits them."""

    def test_a_submitted_job_reads_back_as_asked(self, world):
        """The request, the owner's text and the user's hold are read from the pending job."""
        slurm_job_id = world.submit(
            "--hold", "--gres=gpu:v100:2", "-n2", "-c2", "--mem=2G", "-C", "v100", "-t", "10", "-w", "n3",
            "--comment=metasched min_gpus=1", "-J", "my job",
        )  # fmt: skip
        job = world.job(slurm_job_id)
        assert (job.state, job.hold) == (JobState.PENDING, Hold.USER)
        assert (job.name, job.comment, job.admin_comment) == ("my job", "metasched min_gpus=1", "")
        assert (job.gpus_per_node, job.gpus_total, job.gpus_per_task, job.gpu_type) == (2, None, None, "v100")
        assert (job.nodes_requested, job.tasks, job.cpus, job.memory_per_node) == (1, 2, 4, 2 * 2**30)
        assert (job.features, job.required_nodes, job.time_limit) == (frozenset({"v100"}), ("n3",), 600.0)
        assert (job.array_job_id, job.restarts, job.requeue, job.dependency) == (None, 0, True, "")
        assert (job.allocated, job.started, job.ended, job.exit_code) == ({}, None, None, None)
        assert not job.exclusive
        assert not job.het

    def test_jobs_and_nodes_are_those_of_the_single_reads(self, world):
        """Whether both are read at the same time or one after the other."""
        slurm_job_id = world.submit("--hold", "--gres=gpu:2")
        jobs, nodes = world.client.jobs_and_nodes()
        assert jobs == world.client.jobs()
        assert slurm_job_id in {job.slurm_job_id for job in jobs}
        assert [node.name for node in nodes] == [node.name for node in world.client.nodes()]

    def test_without_accounting_there_are_no_associations(self, world):
        """The client returns None, without an error."""
        assert world.client.associations() is None

    def test_the_boot_time_is_that_of_the_present_controller(self, world):
        """It is an instant in unix seconds, the same at each read."""
        boot_time = world.client.boot_time()
        assert boot_time == world.client.boot_time()
        assert boot_time > 1_700_000_000

    def test_forms_of_gpu_requests_are_told_apart(self, world):
        """GPUs per node, in total and per task are separate fields; a job without GPUs has none of them."""
        told = {}
        for options in (["--gpus=3"], ["--gpus-per-task=1", "-n2"], ["-N2"], ["--exclusive", "--gpus-per-node=1"]):
            job = world.job(world.submit("--hold", *options))
            told[options[0]] = (
                job.gpus_per_node,
                job.gpus_total,
                job.gpus_per_task,
                job.exclusive,
                job.nodes_requested,
            )
        assert told == {
            "--gpus=3": (None, 3, None, False, 1),
            "--gpus-per-task=1": (None, None, 1, False, 1),
            "-N2": (None, None, None, False, 2),
            "--exclusive": (1, None, None, True, 1),
        }

    def test_the_number_of_nodes_follows_from_tasks_per_node(self, world):
        """``-n8 --ntasks-per-node=4`` means two nodes, ``-n2 -c2 -w n3`` one."""
        two = world.job(world.submit("--hold", "-n8", "--ntasks-per-node=4", "--gres=gpu:4"))
        one = world.job(world.submit("--hold", "-n2", "-c2", "-w", "n3"))
        assert (two.nodes_requested, two.tasks, one.nodes_requested) == (2, 8, 1)

    def test_a_job_that_waits_for_a_time_or_a_dependency_is_not_held(self, world):
        """Only priority 0 is a hold."""
        held = world.submit("--hold")
        later = world.job(world.submit("--begin=now+3600"))
        after = world.job(world.submit("-d", f"afterany:{held}"))
        assert (later.hold, later.state, after.hold, after.state) == (Hold.NONE, JobState.PENDING) * 2
        assert later.eligible - later.submitted == pytest.approx(3600, abs=60)
        assert f"afterany:{held}" in after.dependency

    def test_a_dependency_is_followed_without_a_start(self, world):
        """Slurm resolves no dependency of a held job; afterwards the job can be held, updated and started."""
        first = world.submit(does="exit 0")
        held, after = (world.submit("--hold", "-d", f"afterok:{first}") for _ in range(2))
        world.client.hold(after)
        world.client.await_dependency(after)
        assert world.job(after).hold is Hold.NONE
        world.wait(lambda seen: not seen[after].dependency, "the dependency is met")
        assert (world.job(after).state, world.job(after).eligible) == (JobState.PENDING, OUT_OF_REACH)
        assert world.job(held).dependency
        world.client.hold(after)
        assert world.job(after).hold is Hold.ADMIN
        world.client.update(after, geometry(["n2"], 1))
        world.client.release(after)
        world.wait_state(after, JobState.RUNNING)

    def test_unsplit_array_tasks_are_listed_one_by_one(self, world):
        """Each task has a Slurm job id of its own, also while Slurm keeps one record for all."""
        array = world.submit("--hold", "--gres=gpu:1", "--array=1-7:3%2")
        tasks = [job for job in world.client.jobs() if str(job.array_job_id) == array]
        assert sorted(job.slurm_job_id for job in tasks) == [f"{array}_1", f"{array}_4", f"{array}_7"]
        assert {(job.gpus_per_node, job.hold) for job in tasks} == {(1, Hold.USER)}

    def test_array_tasks_are_held_updated_and_released_singly(self, world):
        """One task runs on the nodes of its update, the others stay held."""
        array = world.submit("--hold", "--gres=gpu:1", "--array=0-2")
        world.client.hold(f"{array}_1")
        world.client.update(f"{array}_1", geometry(["n2", "n3"], 2))
        world.client.release(f"{array}_1")
        world.wait_state(f"{array}_1", JobState.RUNNING)
        assert world.job(f"{array}_1").allocated == {"n2": 2, "n3": 2}
        assert [world.job(f"{array}_{task}").hold for task in (0, 2)] == [Hold.USER, Hold.USER]

    def test_an_admin_hold_replaces_a_users_hold_and_resists_the_owner(self, world):
        """Whatever the hold was before, the owner's release changes nothing afterwards."""
        slurm_job_id = world.submit("--hold")
        world.client.hold(slurm_job_id)
        assert world.job(slurm_job_id).hold is Hold.ADMIN
        world.owner_release(slurm_job_id)
        world.pass_time(1.5)
        assert (world.job(slurm_job_id).state, world.job(slurm_job_id).hold) == (JobState.PENDING, Hold.ADMIN)
        world.client.hold(slurm_job_id)  # again is no error

    def test_a_users_hold_can_be_released_by_the_owner(self, world):
        """For this reason metasched makes every hold an administrator's."""
        slurm_job_id = world.submit("--hold")
        world.owner_release(slurm_job_id)
        world.wait_state(slurm_job_id, JobState.RUNNING)

    def test_a_hold_on_a_running_job_waits_for_the_owners_requeue(self, world):
        """The run continues; after the requeue the job has the administrator's hold."""
        slurm_job_id = world.started("--gres=gpu:1")
        world.client.hold(slurm_job_id)
        assert (world.job(slurm_job_id).state, world.job(slurm_job_id).hold) == (JobState.RUNNING, Hold.NONE)
        world.owner_requeue(slurm_job_id)
        world.wait_state(slurm_job_id, JobState.PENDING)
        assert world.job(slurm_job_id).hold is Hold.ADMIN

    def test_an_owners_requeue_comes_back_without_a_hold(self, world):
        """After Slurm's begin delay the job would start by itself."""
        slurm_job_id = world.started("--gres=gpu:1")
        world.owner_requeue(slurm_job_id)
        world.wait_state(slurm_job_id, JobState.PENDING)
        job = world.job(slurm_job_id)
        assert (job.hold, job.restarts) == (Hold.NONE, 1)
        assert 60 < job.eligible - job.submitted < 180

    def test_a_released_job_runs_on_the_nodes_of_its_update(self, world):
        """GPUs, CPUs and memory are those of the geometry."""
        slurm_job_id = world.submit("--hold", "--gres=gpu:2")
        world.client.hold(slurm_job_id)
        world.client.update(slurm_job_id, geometry(["n4", "n2"], 3))
        world.client.release(slurm_job_id)
        world.wait_state(slurm_job_id, JobState.RUNNING)
        job = world.job(slurm_job_id)
        assert (job.allocated, job.allocated_gpu_type) == ({"n2": 3, "n4": 3}, "v100")
        assert job.allocated_cpus == {"n2": 6, "n4": 6}
        assert job.allocated_memory == {"n2": 2100 * MIB, "n4": 2100 * MIB}
        assert job.started >= job.submitted

    def test_a_rigid_job_keeps_its_own_tasks(self, world):
        """The job has two tasks on one GPU, as its script expects."""
        slurm_job_id = world.submit("--hold", "--gres=gpu:1", "-n2", "-c3")
        world.client.update(slurm_job_id, geometry(["n1"], 1, cpus=6, tasks_per_unit=2))
        world.client.release(slurm_job_id)
        world.wait_state(slurm_job_id, JobState.RUNNING)
        assert (world.job(slurm_job_id).tasks, world.job(slurm_job_id).allocated_cpus) == (2, {"n1": 6})

    @pytest.mark.parametrize("farm", [len(FORMS) * 4], indirect=True)
    def test_every_form_of_request_takes_every_shape(self, farm):
        """GPUs spread evenly over the named nodes, CPUs and memory in proportion, and again after each requeue."""
        job_ids, own = {}, {}
        for number, (form, (options, _)) in enumerate(FORMS.items()):
            first = farm.submit("--hold", *options)
            job_ids[form] = f"{first}_3" if form == "array" else first
            own[form] = [f"n{number * 4 + offset}" for offset in (1, 2, 3, 4)]
        for offsets, gpus in SHAPES:
            wanted = {}
            for form, slurm_job_id in job_ids.items():
                nodes, each = [own[form][offset] for offset in offsets], 0 if form == "cpu" else gpus
                farm.client.update(slurm_job_id, geometry(nodes, each, gpu_type=FORMS[form][1], delay=1))
                farm.client.release(slurm_job_id)
                units = max(each, 1)
                wanted[form] = (dict.fromkeys(nodes, each), {2 * units}, {700 * MIB * units})
            farm.wait(
                lambda seen: all(seen[slurm_job_id].state is JobState.RUNNING for slurm_job_id in job_ids.values()),
                f"all run on {len(offsets)} x {gpus}",
            )
            seen = {form: farm.job(slurm_job_id) for form, slurm_job_id in job_ids.items()}
            got = {
                form: (dict(job.allocated), set(job.allocated_cpus.values()), set(job.allocated_memory.values()))
                for form, job in seen.items()
            }
            assert got == wanted
            for slurm_job_id in job_ids.values():
                farm.client.requeue_hold(slurm_job_id)
            farm.wait(
                lambda seen: all(seen[slurm_job_id].state is JobState.PENDING for slurm_job_id in job_ids.values()),
                "all back",
            )

    def test_an_update_of_a_running_job_is_refused_without_harm(self, world):
        """The job loses no node, and Slurm accepts later updates of it."""
        slurm_job_id = world.started("-N2", "--gpus-per-node=1")
        before = world.job(slurm_job_id)
        with pytest.raises(WrongJobStateError):
            world.client.update(slurm_job_id, geometry(sorted(before.allocated)[:1], 1))
        assert world.job(slurm_job_id).allocated == before.allocated
        world.client.stamp(slurm_job_id, "still here")
        cpu_only = world.started("-N2")
        nodes = sorted(world.job(cpu_only).allocated)
        with pytest.raises(WrongJobStateError):
            world.client.update(cpu_only, geometry(nodes[:1], 0))
        assert sorted(world.job(cpu_only).allocated) == nodes

    def test_an_update_to_an_unknown_node_is_refused(self, world):
        """The error has Slurm's words."""
        slurm_job_id = world.submit("--hold", "--gres=gpu:1")
        with pytest.raises(SlurmCommandError, match="node name"):
            world.client.update(slurm_job_id, geometry(["nowhere"], 1))

    def test_a_requeue_puts_a_running_job_back_held(self, world):
        """The trainer gets SIGTERM; then the job is pending with a user's hold, and one restart more."""
        slurm_job_id = world.started("--gres=gpu:1")
        first = world.job(slurm_job_id)
        world.pass_time(1.1)
        world.client.requeue_hold(slurm_job_id)
        world.wait_state(slurm_job_id, JobState.PENDING)
        job = world.job(slurm_job_id)
        assert (job.hold, job.restarts, job.allocated, job.started) == (Hold.USER, 1, {}, None)
        assert job.submitted > first.submitted
        with pytest.raises(WrongJobStateError):
            world.client.requeue_hold(slurm_job_id)

    def test_one_held_task_of_an_array_is_cancelled(self, world):
        """The other tasks stay as they are. Slurm lists no cancelled task that was never split off."""
        array = world.submit("--hold", "--gres=gpu:1", "--array=0-2")
        world.client.cancel(f"{array}_1")
        states = {job.slurm_job_id: job.state for job in world.client.jobs()}
        assert states.pop(f"{array}_1", JobState.CANCELLED) is JobState.CANCELLED
        assert [states[f"{array}_{task}"] for task in (0, 2)] == [JobState.PENDING] * 2

    def test_a_cancelled_job_is_not_requeued(self, world):
        """A requeue after a cancellation is refused, and the job stays cancelled."""
        slurm_job_id = world.started("--gres=gpu:1")
        world.client.cancel(slurm_job_id)
        world.wait_state(slurm_job_id, JobState.CANCELLED)
        with pytest.raises(WrongJobStateError):
            world.client.requeue_hold(slurm_job_id)
        assert world.job(slurm_job_id).state is JobState.CANCELLED

    def test_a_cancelled_job_is_not_requeued_by_its_exit_code(self, world):
        """Its trainer saves on SIGTERM, and exits with the code after which Slurm requeues other jobs."""
        slurm_job_id = world.started("--gres=gpu:1", does="saves")
        world.client.cancel(slurm_job_id)
        world.wait_state(slurm_job_id, JobState.CANCELLED)
        world.pass_time(1.5)
        assert world.job(slurm_job_id).state is JobState.CANCELLED

    def test_a_cancelled_job_is_not_requeued_while_it_completes(self, world):
        """A requeue is refused while a cancelled job that ignores SIGTERM still completes."""
        slurm_job_id = world.started("--gres=gpu:2", does="deaf")
        world.cancel(slurm_job_id)
        world.wait_state(slurm_job_id, JobState.COMPLETING)
        with pytest.raises(WrongJobStateError):
            world.client.requeue_hold(slurm_job_id)
        world.wait_state(slurm_job_id, JobState.CANCELLED)

    def test_a_job_that_ignores_sigterm_holds_its_gpus_until_killed(self, world):
        """The job is COMPLETING, with its GPUs, until SIGKILL."""
        slurm_job_id = world.started("--gres=gpu:2", does="deaf")
        world.client.requeue_hold(slurm_job_id)
        world.pass_time(0.3)
        job = world.job(slurm_job_id)
        assert (job.state, list(job.allocated.values()), job.allocated_gpu_type) == (JobState.COMPLETING, [2], None)
        world.wait_state(slurm_job_id, JobState.PENDING)

    def test_a_requeued_job_starts_again_on_the_same_node_at_once(self, world):
        """An update with a delay clears Slurm's two minutes."""
        slurm_job_id = world.started("--gres=gpu:1")
        where = tuple(world.job(slurm_job_id).allocated)
        world.client.requeue_hold(slurm_job_id)
        world.wait_state(slurm_job_id, JobState.PENDING)
        world.client.update(slurm_job_id, geometry(where, 1, delay=1))
        world.client.release(slurm_job_id)
        world.wait_state(slurm_job_id, JobState.RUNNING)
        assert world.job(slurm_job_id).restarts == 1

    def test_the_exit_code_85_requeues_and_holds(self, world):
        """Such a job is pending with a user's hold, and has its exit code."""
        slurm_job_id = world.submit("--gres=gpu:1", does="exit 85")
        world.wait(lambda seen: seen[slurm_job_id].restarts == 1, "requeued")
        job = world.job(slurm_job_id)
        assert (job.state, job.hold) == (JobState.PENDING, Hold.USER)
        assert "SPECIAL_EXIT" in job.slurm_state.split("+")
        assert (job.exit_code, job.allocated) == (85, {})

    @pytest.mark.parametrize(("code", "state"), [(0, JobState.COMPLETED), (3, JobState.FAILED)])
    def test_a_finished_job_has_its_state_exit_code_and_end(self, world, code, state):
        """The job holds no resources any more."""
        slurm_job_id = world.submit("--gres=gpu:1", does=f"exit {code}")
        world.wait_state(slurm_job_id, state)
        job = world.job(slurm_job_id)
        assert (job.exit_code, job.allocated, job.hold) == (code, {}, Hold.NONE)
        assert job.ended >= job.started >= job.submitted

    def test_a_finished_job_can_be_requeued(self, world):
        """A job whose last run failed can run again."""
        slurm_job_id = world.submit(does="exit 3")
        world.wait_state(slurm_job_id, JobState.FAILED)
        world.client.requeue_hold(slurm_job_id)
        world.wait_state(slurm_job_id, JobState.PENDING)
        assert world.job(slurm_job_id).hold is Hold.USER

    def test_a_signal_reaches_the_tasks_and_changes_nothing_else(self, world):
        """The trainer notes the signal, and its run continues."""
        slurm_job_id = world.started("--gres=gpu:1", does="note USR2")
        assert not world.client.signal([slurm_job_id], "SIGUSR2")
        world.wait(lambda _: world.noted(slurm_job_id) == ["USR2"], "signal noted")
        assert world.job(slurm_job_id).state is JobState.RUNNING

    @pytest.mark.parametrize("more", [0, 10])
    def test_several_jobs_get_a_signal_by_one_call(self, world, more):
        """The errors name the jobs that do not run and the unknown ones; the others get the signal all the same."""
        running, pending = world.started("--gres=gpu:1", does="note USR2"), world.submit("--hold", "--array=0-2")
        unknown = ["99999", "99999_3", *(str(99900 + number) for number in range(more))]
        errors = world.client.signal([f"{pending}_1", *unknown, running], "SIGUSR2")
        expected = {f"{pending}_1": WrongJobStateError} | dict.fromkeys(unknown, NoSuchJobError)
        assert {slurm_job_id: type(error) for slurm_job_id, error in errors.items()} == expected
        world.wait(lambda _: world.noted(running) == ["USR2"], "signal noted")
        assert world.client.signal([], "SIGUSR2") == {}

    def test_a_signal_for_one_task_of_an_array_reaches_no_other(self, world):
        """The last task's own job id is that of the array."""
        array = world.submit("--gres=gpu:1", "--array=0-2", does="note USR2")
        tasks = [f"{array}_{task}" for task in range(3)]
        for task in tasks:
            world.wait_state(task, JobState.RUNNING)
            world.wait_ready(task)
        assert not world.client.signal([tasks[2]], "SIGUSR2")
        world.wait(lambda _: world.noted(tasks[2]) == ["USR2"], "signal noted")
        assert not world.client.signal([tasks[0]], "SIGUSR2")
        world.wait(lambda _: world.noted(tasks[0]) == ["USR2"], "signal noted")
        assert [world.noted(task) for task in tasks] == [["USR2"], [], ["USR2"]]

    def test_suspend_frees_cpus_but_not_gpus(self, world):
        """Another job gets all CPUs of the node meanwhile; a resume continues the run on the same node."""
        slurm_job_id = world.started("--gres=gpu:2", "-n1", "--mem=100M")
        (where,) = world.job(slurm_job_id).allocated
        world.client.suspend(slurm_job_id)
        job = world.job(slurm_job_id)
        assert (job.state, job.hold, job.allocated) == (JobState.SUSPENDED, Hold.NONE, {where: 2})
        other = world.started("-n16", "--mem=100M", "-w", where)
        world.cancel(other)
        world.wait_state(other, JobState.CANCELLED)
        world.client.resume(slurm_job_id)
        assert world.job(slurm_job_id).state is JobState.RUNNING

    def test_a_resumed_job_has_lost_the_hold_that_waited_for_its_requeue(self, world):
        """Held again, the job is held after its requeue."""
        loose, sure = world.started("--gres=gpu:1"), world.started("--gres=gpu:1")
        for slurm_job_id in (loose, sure):
            world.client.hold(slurm_job_id)
            world.client.suspend(slurm_job_id)
            world.client.resume(slurm_job_id)
        world.client.hold(sure)
        for slurm_job_id in (loose, sure):
            world.owner_requeue(slurm_job_id)
            world.wait_state(slurm_job_id, JobState.PENDING)
        assert (world.job(loose).hold, world.job(sure).hold) == (Hold.NONE, Hold.ADMIN)

    def test_shards_of_one_gpu_hold_two_jobs(self, world):
        """The client reads each job's GPU; a GPU with an allocated shard is not allocated whole."""
        one, other, third = (world.started("--gres=shard:1", "-w", "n1") for _ in range(3))
        assert [world.job(job).gpu_indices for job in (one, other, third)] == [{"n1": (0,)}, {"n1": (0,)}, {"n1": (1,)}]
        job = world.job(one)
        assert (job.allocated, job.shards, job.shards_per_node) == ({"n1": 1}, {"n1": 1}, 1)
        assert (job.gpus_per_node, job.gpus_total, job.allocated_gpu_type) == (None, None, None)
        whole, both = world.started("--gres=gpu:1", "-w", "n1"), world.started("--gres=shard:2", "-w", "n1")
        assert world.job(whole).gpu_indices == {"n1": (2,)}
        assert (world.job(both).gpu_indices, world.job(both).shards) == ({"n1": (3,)}, {"n1": 2})
        node = next(node for node in world.client.nodes() if node.name == "n1")
        assert (node.shards_per_gpu, dict(node.gpus)) == (2, {"v100": 4})

    def test_a_shard_comes_from_the_first_gpu_that_has_one_free(self, world):
        """A plan that co-locates two jobs depends on this order."""
        whole = world.started("--gres=gpu:1", "-w", "n1")
        partial = world.started("--gres=shard:1", "-w", "n1")
        world.cancel(whole)
        world.wait_state(whole, JobState.CANCELLED)
        first = world.started("--gres=shard:1", "-w", "n1")
        both = world.started("--gres=shard:2", "-w", "n1")
        assert [world.job(job).gpu_indices["n1"] for job in (partial, first, both)] == [(1,), (0,), (2,)]

    def test_slurm_counts_a_shared_gpu_free_when_the_first_job_has_ended(self, world):
        """Slurm before 23.02 then allocates the GPU whole; requests of shards are counted right."""
        if world.client.settings().version >= (23, 2):
            pytest.skip("this Slurm remembers")
        ends, stays = (world.started("--gres=shard:1", "-w", "n1") for _ in range(2))
        world.cancel(ends)
        world.wait_state(ends, JobState.CANCELLED)
        both = world.started("--gres=shard:2", "-w", "n1")
        whole = world.started("--gres=gpu:1", "-w", "n1")
        assert [world.job(job).gpu_indices["n1"] for job in (stays, both, whole)] == [(0,), (1,), (0,)]

    @pytest.mark.parametrize(("kind", "options"), [(None, "--gres=shard:2"), ("v100", "--gres=shard:v100:2")])
    def test_a_job_of_shards_can_get_another_number_of_shards(self, world, kind, options):
        """It gets all shards of a GPU, half of them, all again, each after a requeue; then one on each of two nodes."""
        slurm_job_id = world.submit("--hold", options)
        for shards, nodes in ((2, ["n1"]), (1, ["n2"]), (1, ["n2", "n3"]), (2, ["n2"])):
            size = replace(geometry(nodes, 1, gpu_type=kind, delay=1), shards_per_node=shards)
            world.client.update(slurm_job_id, size)
            world.client.release(slurm_job_id)
            world.wait_state(slurm_job_id, JobState.RUNNING)
            job = world.job(slurm_job_id)
            assert (job.shards, job.allocated) == (dict.fromkeys(nodes, shards), dict.fromkeys(nodes, 1))
            world.client.requeue_hold(slurm_job_id)
            world.wait_state(slurm_job_id, JobState.PENDING)

    def test_a_request_for_gpus_cannot_become_one_for_shards(self, world):
        """The submitted request decides; Slurm refuses most such updates."""
        if world.client.settings().version >= (24, 11):
            pytest.skip("this Slurm lets them")
        gpu, shard = world.submit("--hold", "--gres=gpu:1"), world.submit("--hold", "--gres=shard:2")
        with pytest.raises(SlurmCommandError, match="gres"):
            world.client.update(gpu, replace(geometry(["n1"], 1), shards_per_node=1))
        with pytest.raises(SlurmCommandError, match="gres"):
            world.client.update(shard, geometry(["n1"], 1))

    def test_two_jobs_on_a_gpu_are_time_sliced_by_suspension(self, world):
        """The suspended job keeps its shard, and can be exchanged with the other at any time."""
        one, other = (world.started("--gres=shard:1", "-w", "n1", does="sleep") for _ in range(2))
        world.client.suspend(one)
        for runs, waits in ((other, one), (one, other)):
            if world.job(waits).state is JobState.RUNNING:
                world.client.suspend(waits)
                world.client.resume(runs)
            assert (world.job(runs).state, world.job(waits).state) == (JobState.RUNNING, JobState.SUSPENDED)
            assert (world.job(waits).gpu_indices, world.job(waits).shards) == ({"n1": (0,)}, {"n1": 1})
        late = world.started("--gres=shard:1", "-w", "n1")
        assert world.job(late).gpu_indices == {"n1": (1,)}

    def test_a_cancelled_job_reads_as_cancelled(self, world):
        """This holds for a pending job as for a running one."""
        pending, running = world.submit("--hold"), world.started()
        for slurm_job_id in (pending, running):
            world.cancel(slurm_job_id)
            world.wait_state(slurm_job_id, JobState.CANCELLED)

    def test_a_call_that_does_not_suit_the_jobs_state_is_refused(self, world):
        """Each call raises WrongJobStateError, and the job is unchanged."""
        pending, running = world.submit("--hold"), world.started()
        for refused in (
            lambda: world.client.suspend(pending),
            lambda: world.client.resume(pending),
            lambda: signal_one(world.client, pending, "SIGUSR2"),
            lambda: world.client.resume(running),
        ):
            with pytest.raises(WrongJobStateError):
                refused()
        assert (world.job(pending).state, world.job(running).state) == (JobState.PENDING, JobState.RUNNING)
        world.cancel(pending)
        world.wait_state(pending, JobState.CANCELLED)
        for refused in (world.client.hold, world.client.release, world.client.suspend, world.client.resume):
            with pytest.raises(WrongJobStateError):
                refused(pending)

    @pytest.mark.parametrize("slurm_job_id", ["99999", "99999_3"])
    def test_an_unknown_job_is_named(self, world, slurm_job_id):
        """Every call raises NoSuchJobError."""
        client = world.client
        for call in (
            client.hold,
            client.release,
            client.set_requeue,
            client.requeue_hold,
            client.suspend,
            client.resume,
            lambda slurm_job_id: client.update(slurm_job_id, geometry(["n1"], 1)),
            lambda slurm_job_id: client.stamp(slurm_job_id, "text"),
            lambda slurm_job_id: signal_one(client, slurm_job_id, "SIGUSR2"),
            client.batch_script,
        ):
            with pytest.raises(NoSuchJobError, match=slurm_job_id):
                call(slurm_job_id)

    @pytest.mark.parametrize("slurm_job_id", ["", "1 2", "1;2", "-1", "all", "1_", "1_2_3", "1\nhold 2", "1,2"])
    def test_only_job_ids_reach_a_command_line(self, world, slurm_job_id):
        """Any other text raises InvalidArgumentError."""
        for call in (
            world.client.hold,
            world.client.release,
            world.client.requeue_hold,
            world.client.batch_script,
            lambda slurm_job_id: world.client.stamp(slurm_job_id, "text"),
            lambda slurm_job_id: signal_one(world.client, slurm_job_id, "SIGTERM"),
        ):
            with pytest.raises(InvalidArgumentError):
                call(slurm_job_id)

    @pytest.mark.parametrize(
        "text", ["metasched:0123456789abcdef", 'it\'s "quoted" at 3 > 2; <tag> = \\ $HOME & more', "ünï"]
    )
    def test_a_stamp_is_read_back_as_written(self, world, text):
        """The text may have blanks, quotes and letters of any alphabet."""
        slurm_job_id = world.submit("--hold")
        world.client.stamp(slurm_job_id, text)
        assert world.job(slurm_job_id).admin_comment == text

    def test_a_stamp_of_an_array_reaches_tasks_that_are_not_split(self, world):
        """One write to the master's record stamps them all."""
        array = world.submit("--hold", "--array=1-3")
        world.client.stamp(array, "metasched:0123456789abcdef")
        stamps = {job.admin_comment for job in world.client.jobs() if str(job.array_job_id) == array}
        assert stamps == {"metasched:0123456789abcdef"}

    @pytest.mark.parametrize("held", [["--hold"], []])
    @pytest.mark.parametrize("text", ["metasched:0123456789abcdef", "metasched:0123456789abcdef 'min' is no key"])
    def test_adoption_is_stamp_hold_and_requeue_flag_in_one(self, world, held, text):
        """Afterwards the owner can neither release the job nor prevent its requeue."""
        world.submit("--gres=gpu:4", "-N4")
        world.pass_time(1.5)
        slurm_job_id = world.submit("--no-requeue", "--gres=gpu:4", "-N4", *held)
        world.client.adopt(slurm_job_id, text)
        job = world.job(slurm_job_id)
        assert (job.admin_comment, job.hold, job.requeue, job.state) == (text, Hold.ADMIN, True, JobState.PENDING)

    def test_control_characters_are_no_stamp(self, world):
        """A line break could begin another command."""
        with pytest.raises(InvalidArgumentError):
            world.client.stamp(world.submit("--hold"), "a\nupdate JobId=1 Priority=5")
        with pytest.raises(InvalidArgumentError):
            world.client.adopt(world.submit("--hold"), "a\nupdate JobId=1 Priority=5")

    def test_the_requeue_flag_can_be_set(self, world):
        """A job submitted with --no-requeue could not be preempted."""
        slurm_job_id = world.submit("--hold", "--no-requeue")
        assert not world.job(slurm_job_id).requeue
        world.client.set_requeue(slurm_job_id)
        assert world.job(slurm_job_id).requeue

    def test_a_job_without_the_requeue_flag_is_not_requeued(self, world):
        """Slurm refuses, and the run continues."""
        slurm_job_id = world.started("--no-requeue")
        with pytest.raises(WrongJobStateError):
            world.client.requeue_hold(slurm_job_id)
        assert world.job(slurm_job_id).state is JobState.RUNNING

    def test_the_batch_script_is_what_was_submitted(self, world):
        """The script is the same for all options, and for all tasks of an array."""
        client, alike = world.client, [world.started(), world.submit("--hold", "--time=7"), world.submit("--array=1-3")]
        assert len({client.batch_script(slurm_job_id) for slurm_job_id in alike}) == 1
        other = world.submit("--hold", does="exit 3")
        assert client.batch_script(other) != client.batch_script(alike[0])
        assert "exit 3" in client.batch_script(other)

    def test_a_lost_node_puts_its_jobs_back_without_a_hold(self, world):
        """An administrator's hold that waited for the requeue takes effect."""
        loose, sure = world.started("-w", "n1"), world.started("-w", "n1")
        world.client.hold(sure)
        world.node_down("n1")
        for slurm_job_id in (loose, sure):
            world.wait_state(slurm_job_id, JobState.PENDING)
        assert (world.job(loose).hold, world.job(sure).hold) == (Hold.NONE, Hold.ADMIN)

    def test_a_drained_node_accepts_no_jobs(self, world):
        """Jobs that run on the node continue."""
        slurm_job_id = world.started("-w", "n1")
        world.node_drain("n1")
        nodes = {node.name: node for node in world.client.nodes()}
        assert (nodes["n1"].accepts, nodes["n2"].accepts) == (False, True)
        assert world.job(slurm_job_id).state is JobState.RUNNING

    def test_nodes_read_back_as_configured(self, world):
        """GPUs by type, CPUs, bytes, features and partitions."""
        node = next(node for node in world.client.nodes() if node.name == "n1")
        assert (dict(node.gpus), node.cpus, node.memory) == ({"v100": 4}, 16, 64000 * MIB)
        assert (node.features, node.partitions, node.accepts) == ({"v100"}, {"main"}, True)

    def test_racks_are_the_leaf_switches(self, world):
        """The world's cluster has two switches of two nodes each."""
        assert world.client.racks() == {"n1": "s1", "n2": "s1", "n3": "s2", "n4": "s2"}

    def test_settings_are_read(self, world):
        """The daemon depends on these settings."""
        settings = world.client.settings()
        assert settings.version >= (22, 5)
        assert settings.requeue_exit_hold == {85}
