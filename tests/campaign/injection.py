"""Faults done to a private Slurm cluster, its daemon and its trainings, and undone again."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from queue import Empty, Queue

from metasched.devcluster import processes
from metasched.devcluster.errors import CommandError, DevClusterError
from metasched.slurm.json_parser import parse_jobs, parse_nodes
from metasched.slurm.json_releases import nodes_command
from metasched.slurm.leaked_gpus import LeakedGpus
from tests.campaign import faults

STORE_DISK_BYTES = 128 << 20
NODE_SECONDS = 40.0  # for which a node may be out of service after the last fault that explains it
LOOK_SECONDS = 5.0  # from one look at the nodes to the next
REASON = "campaign"  # of the administrator's drains; a killed controller may forget that they were undone
SLURMS_OWN_DRAIN = "Duplicate jobid"  # a controller that lost a start drains the node when it starts the job again
CHECKPOINT_WAIT = 2.0  # seconds for the beginning of a checkpoint
ADMIN_TRIES = 30


class VoidError(Exception):
    """There is nothing that the fault could strike now."""


class StoreDisk:
    """A small disk of its own for the store, where the kernel lets us mount one. A context manager."""

    def __init__(self, state):
        self.state = state
        self.mounted = False

    def __enter__(self):
        self.state.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            command = ["mount", "-t", "tmpfs", "-o", f"size={STORE_DISK_BYTES},mode=700", "tmpfs", self.state]
            done = subprocess.run(command, capture_output=True, timeout=10, check=False)
            self.mounted = done.returncode == 0
        return self

    def fill(self):
        """Write until the disk has no byte left."""
        with contextlib.suppress(OSError), (self.state / "fill").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16)) or file.write(b"\0")

    def free(self):
        """Give back what `fill` took."""
        (self.state / "fill").unlink(missing_ok=True)

    def __exit__(self, *_):
        if self.mounted:
            subprocess.run(["umount", "-l", self.state], capture_output=True, timeout=10, check=False)


class ServiceManager:
    """Starts the daemon again when it has ended, as systemd would; its ends without a kill are counted."""

    RESTART_SECONDS = 1.0

    def __init__(self, site, events):
        self.site = site
        self.events = events
        self.down_until = 0.0  # monotonic seconds
        self.ends = []  # (seconds from the start, the last line of the log) of ends that no kill explains
        self._noticed = False
        self._killed = False
        self._starts = 1

    def is_ready(self):
        """Whether the daemon's last start is complete: a service manager reloads no daemon before."""
        return self.site.log().count("] started ") >= self._starts

    def alive(self):
        """Whether the daemon runs (or is stopped)."""
        return self.site.daemon is not None and self.site.daemon.poll() is None

    def kill(self, seconds):
        """Kill the daemon, and keep it down for that long."""
        self.site.kill()
        self._killed = True
        self.down_until = time.monotonic() + seconds

    def keep_running(self):
        """Start the daemon where it has ended and its pause is over."""
        if self.alive():
            return
        if not self._killed and not self._noticed:
            self._noticed = True
            self.down_until = time.monotonic() + self.RESTART_SECONDS
            last = [line for line in self.site.log().splitlines() if line.strip()][-1:]
            self.ends.append((self.events.now(), last))
            self.events.add(f"the daemon has ended with status {self.site.daemon.returncode}: {last}")
        if time.monotonic() >= self.down_until:
            self._killed = self._noticed = False
            self._starts = self.site.log().count("] started ") + 1
            self.site.start()
            self.events.add("the daemon is started")


class Injector:
    """Begins faults, and undoes them.

    Args:
        site: the cluster, and the daemon's directories.
        service: of the daemon; None in a campaign on plain Slurm.
        users: whose trainings are struck.
        disk: of the store.
        events: what happens is added there.
    """

    def __init__(self, site, service, users, disk, events):
        self.site, self.service, self.users, self.disk, self.events = site, service, users, disk, events
        self.cluster = site.cluster
        self._nodes_command = nodes_command(self.cluster.software.release)
        self.down = {}  # node: until when the campaign keeps it from service, monotonic seconds
        self.disk_full_until = 0.0
        self.controller_boots = []  # unix seconds at which slurmctld was started again
        self.problems = []  # (seconds from the start, text) of nodes that needed an administrator's hand
        self.slurms_hands = 0  # nodes drained for a start, or for a return to service, that a killed slurmctld forgot
        self.reconfigurations = 0  # of a controller that counted GPUs as allocated that no job held
        self._leaked = LeakedGpus()
        self._commands = Queue()
        self._busy = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run_commands, daemon=True)
        self._thread.start()

    def begin(self, fault):
        """Do it, and return what undoes it, or None.

        Raises:
            VoidError: there is nothing to strike.
        """
        begin = {
            faults.POLICY: self._next_policy,
            faults.DAEMON_KILLED: self._kill_daemon,
            faults.DAEMON_STOPPED: self._stop_daemon,
            faults.CONTROLLER_KILLED: self._kill_controller,
            faults.CONTROLLER_STOPPED: self._stop_controller,
            faults.SLURMD_KILLED: self._kill_slurmd,
            faults.SLURMD_STOPPED: self._stop_slurmd,
            faults.NODE_DRAINED: self._drain_node,
            faults.NODE_DOWN: self._set_node_down,
            faults.NODE_CRASHED: self._crash_node,
            faults.RANK_STOPPED: self._stop_processes,
            faults.WRAPPER_STOPPED: self._stop_processes,
            faults.DISK_FULL: self._fill_disk,
        }.get(fault.kind, self._kill_processes)
        try:
            return begin(fault)
        except DevClusterError as error:  # it is down already
            raise VoidError(str(error)[:100]) from error

    def close(self, seconds=90.0):
        """Wait until the administrator's commands have been run."""
        deadline = time.monotonic() + seconds
        while (self._busy.is_set() or not self._commands.empty()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self._end.set()

    # The daemon

    def _next_policy(self, fault):
        name = faults.policy_of(fault.draw)
        if self.service is None:
            raise VoidError("no daemon")
        self.site.configure(policy=name, grace=10)
        if self.service.alive() and self.service.is_ready():
            self.site.daemon.send_signal(signal.SIGHUP)
        self.events.add(f"policy {name}")

    def _kill_daemon(self, fault):
        self._daemon_must_run()
        self.service.kill(fault.seconds)

    def _stop_daemon(self, fault):
        self._daemon_must_run()
        daemon = self.site.daemon
        os.killpg(daemon.pid, signal.SIGSTOP)

        def wake():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGCONT)

        return wake

    def _daemon_must_run(self):
        if self.service is None or not self.service.alive():
            raise VoidError("no daemon")

    def _fill_disk(self, fault):
        if self.service is None or not self.disk.mounted:
            raise VoidError("the store has no disk of its own")
        self.disk.fill()
        self.disk_full_until = time.monotonic() + fault.seconds + 2 * ServiceManager.RESTART_SECONDS + 1
        return self.disk.free

    # Slurm

    def _kill_controller(self, fault):
        self.cluster.kill_controller()
        self.users.controller_kills.append(time.time())
        return self._start_controller

    def _start_controller(self):
        self.controller_boots.append(time.time())
        self.cluster.start_controller()

    def _stop_controller(self, fault):
        self.cluster.kill_controller(signal.SIGSTOP)
        return lambda: self.cluster.kill_controller(signal.SIGCONT)

    def _node(self, fault):
        return self.cluster.nodes[int(fault.draw * len(self.cluster.nodes))]

    def _kill_slurmd(self, fault):
        node = self._node(fault)
        self.cluster.kill_node(node)
        self._keep_from_service(node, fault.seconds)
        return lambda: self.cluster.start_node(node)

    def _stop_slurmd(self, fault):
        node = self._node(fault)
        self.cluster.kill_node(node, signal.SIGSTOP)
        self._keep_from_service(node, fault.seconds)
        return lambda: self.cluster.kill_node(node, signal.SIGCONT)

    def _drain_node(self, fault):
        return self._take_from_service(self._node(fault), "drain", fault.seconds)

    def _set_node_down(self, fault):
        return self._take_from_service(self._node(fault), "down", fault.seconds)

    def _crash_node(self, fault):
        """End slurmd and everything below it at once, as a loss of power does; a health check then tells Slurm."""
        node = self._node(fault)
        self.cluster.kill_node(node)
        everyone = {process.pid: process for process in processes.everyone()}
        lost = [process for process in everyone.values() if process.environ.get("SLURMD_NODENAME") == node]
        lost = [process for process in lost if process.environ.get("SLURM_CONF") == str(self.cluster.conf)]
        stepds = {process.parent for process in lost}
        stepds = {pid for pid in stepds if pid in everyone and everyone[pid].argv[0].startswith("slurmstepd:")}
        for process in (*(everyone[pid] for pid in stepds), *lost):  # Slurm's daemons first, so that none tells of it
            processes.end(process)
        jobs = {process.environ.get("SLURM_JOB_ID") for process in lost}
        for training in self.users.live():
            if training.slurm_job_id in jobs:
                self._strike(training, fault)
        bring_back = self._take_from_service(node, "down", fault.seconds)

        def boot():
            with contextlib.suppress(DevClusterError):
                self.cluster.start_node(node)
            bring_back()

        return boot

    def _take_from_service(self, node, state, seconds):
        self._keep_from_service(node, seconds)
        self._admin("scontrol", "update", f"nodename={node}", f"state={state}", f"reason={REASON}")
        return lambda: self._admin("scontrol", "update", f"nodename={node}", "state=resume")

    def _keep_from_service(self, node, seconds):
        self.down[node] = max(self.down.get(node, 0.0), time.monotonic() + seconds)

    def _admin(self, *command):
        """Run a command of the administrator after the earlier ones, as soon as Slurm answers."""
        self._commands.put(command)

    def _run_commands(self):
        looked = time.monotonic()
        while not self._end.is_set():
            if time.monotonic() - looked > LOOK_SECONDS:
                self._look_at_nodes()
                self._look_at_leaked_gpus()
                looked = time.monotonic()
            try:
                command = self._commands.get(timeout=0.2)
            except Empty:
                continue
            self._busy.set()
            for _ in range(ADMIN_TRIES):
                try:
                    self.cluster.run(*command, timeout=20)
                except CommandError as error:
                    if "Invalid node state" in str(error):  # it is back by itself
                        break
                    time.sleep(1)
                else:
                    break
            else:
                self.events.add(f"given up: {command}")
            self._busy.clear()

    def _look_at_nodes(self):
        """Return a node to service that stays out of it without a fault, as an administrator would, and note it."""
        try:
            rows = self.cluster.run("sinfo", "-h", "-N", "-o", "%N %T %E", timeout=10).splitlines()
        except CommandError:
            return
        for row in rows:
            node, state, why = row.split(" ", 2)
            explained = self.down.get(node, 0.0) + NODE_SECONDS > time.monotonic()
            if explained or not any(word in state for word in ("down", "drain", "fail")):
                continue
            text = f"node {node} is {state} ({why}); returned to service by hand"
            self.events.add(text)
            if self.users.controller_kills and (SLURMS_OWN_DRAIN in why or why.startswith(REASON)):
                self.slurms_hands += 1
            else:
                self.problems.append((self.events.now(), text))
            self._keep_from_service(node, 0.0)
            self._admin("scontrol", "update", f"nodename={node}", "state=resume")

    def _look_at_leaked_gpus(self):
        """Reconfigure a Slurm that counts GPUs as allocated that no job holds, as `metasched status` says."""
        try:
            nodes = parse_nodes(self.cluster.run(*self._nodes_command, timeout=10)).records
            jobs = parse_jobs(self.cluster.run("squeue", "--json", "-a", timeout=10)).records
        except CommandError:
            return
        if leaked := self._leaked.update(nodes, jobs, time.monotonic()):
            told = self.service is not None and self.site.log().count("gpus_leaked")
            self.events.add(
                f"Slurm has leaked GPUs: {dict(leaked)}; reconfigured by hand; {told} warnings of the daemon"
            )
            self._leaked = LeakedGpus()
            self.reconfigurations += 1
            self._admin("scontrol", "reconfigure")

    # Trainings

    def _strike(self, training, fault):
        training.strikes.append((time.time(), fault.kind))
        self.events.add(f"{fault.kind}: {training.name} (job {training.slurm_job_id})")

    def _kill_processes(self, fault):
        training, found = self._victims(fault)
        if fault.kind == faults.RANK_0_IN_CHECKPOINT:
            current = training.witness.newest
            with contextlib.suppress(TimeoutError):
                training.witness.wait(lambda: training.witness.writing(current), CHECKPOINT_WAIT, "a checkpoint")
        self._strike(training, fault)
        for process in found:
            processes.end(process)

    def _stop_processes(self, fault):
        training, found = self._victims(fault)
        training.stopped_until = max(training.stopped_until, time.time() + fault.seconds)
        self._strike(training, fault)
        for process in found:
            processes.end(process, signal.SIGSTOP)
        return lambda: [processes.end(process, signal.SIGCONT) for process in found]

    def _victims(self, fault):
        """A training that runs, and its processes of that kind."""
        running = [(training, found) for training in self.users.live() if (found := training.trainers())]
        if not running:
            raise VoidError("no training runs")
        scaled = fault.draw * len(running)
        training, trainers = running[int(scaled)]
        if fault.kind in {faults.RANK_KILLED, faults.RANK_STOPPED}:
            return training, [trainers[int((scaled % 1) * len(trainers))]]
        if fault.kind == faults.RANKS_KILLED:
            return training, trainers
        if fault.kind == faults.RANK_0_IN_CHECKPOINT:
            return training, trainers[:1]
        job_id = trainers[0].environ["SLURM_JOB_ID"]
        found = [process for process in processes.everyone() if self._is_victim(process, fault.kind, job_id)]
        if not found:
            raise VoidError("the training has no such process")
        return training, found

    def _is_victim(self, process, kind, job_id):
        if kind in {faults.BATCH_STEPD_KILLED, faults.STEP_STEPD_KILLED}:
            batch = process.argv[0].startswith(f"slurmstepd: [{job_id}.batch]")
            step = process.argv[0].startswith(f"slurmstepd: [{job_id}.") and not batch
            mine = Path(process.exe).is_relative_to(self.cluster.layout.sbin)
            return mine and (batch if kind == faults.BATCH_STEPD_KILLED else step)
        ours = process.environ.get("SLURM_CONF") == str(self.cluster.conf)
        if not ours or process.environ.get("SLURM_JOB_ID") != job_id:
            return False
        if kind == faults.SHELL_KILLED:
            return len(process.argv) > 1 and process.argv[-2].endswith("/slurm_script")
        return "python" in process.argv[0] and any(word.endswith("/metasched-run") for word in process.argv)
