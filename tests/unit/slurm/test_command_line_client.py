"""The command-line client against stand-ins for Slurm's commands: caching, errors, and a scontrol that misbehaves."""

import inspect
import json
import logging
import os
import subprocess
import time

import pytest

from metasched.slurm.client import SlurmClient
from metasched.slurm.command_line_client import MOST_SINGLE_READS, CommandLineClient
from metasched.slurm.command_runner import run_command
from metasched.slurm.errors import (
    InvalidArgumentError,
    NoSuchJobError,
    SlurmCommandError,
    SlurmPermissionError,
    SlurmTimeoutError,
    SlurmTooOldError,
    SlurmUnavailableError,
    WrongJobStateError,
)
from metasched.slurm.read_only_client import ReadOnlyClient
from metasched.slurm.scontrol_pipe import ScontrolPipe, fits
from tests.unit.slurm.job_texts import text_of
from tests.unit.slurm.test_json_parser import NODE_22, NODE_24, PENDING_22, RUNNING_22

# Prints what the file of its name holds (on standard error if there is one that ends in .err), and counts its calls.
SAY = """#!/bin/bash
echo "$*" >> {base}/$(basename $0).calls
name=$(basename $0); [[ "$*" == *--json* ]] && name=$name.json
[[ -f {base}/$name.err ]] && {{ cat {base}/$name.err >&2; exit 1; }}
cat {base}/$name.out
"""
# A scontrol on a pipe: knows a few words.
SCONTROL = """#!/bin/bash
[[ $# -gt 0 ]] && {{ echo "argv $*" >> {base}/scontrol.calls; exit 0; }}
echo start >> {base}/scontrol.calls
while IFS= read -r line; do
  echo "scontrol: $line"
  case "$line" in
    metasched-end-*) echo "invalid keyword: $line" >&2 ;;
    hold\\ 13) exit 3 ;;
    hold\\ 14) echo "last words" >&2; exit 3 ;;
    hold\\ 15) sleep 30 ;;
    hold\\ 9) echo "Invalid job id specified for job 9" >&2; echo "slurm_suspend error: Invalid job id specified" >&2 ;;
    *) echo "$line" >> {base}/scontrol.calls ;;
  esac
done
"""


QUEUE = "1|1|PENDING|JobHeldUser|1|0||1|1|0|1|main|N/A\n"


class Stand:
    """A directory of stand-ins, first on PATH."""

    def __init__(self, base):
        self.base = base
        bin_dir = base / "bin"
        bin_dir.mkdir()
        for name, text in (("squeue", SAY), ("sinfo", SAY), ("scancel", SAY), ("scontrol", SCONTROL)):
            path = bin_dir / name
            path.write_text(text.format(base=base))
            path.chmod(0o755)
        self.env = {"PATH": f"{bin_dir}:{os.environ['PATH']}", "SQUEUE_FORMAT": "%all", "SLURM_TIME_FORMAT": "relative"}
        self.says("sinfo", "slurm-wlm 24.11.0\n")
        self.says("squeue", QUEUE)
        self.says("squeue.json", json.dumps({"jobs": [PENDING_22 | {"job_id": 1}]}))

    def says(self, name, text):
        (self.base / f"{name}.out").write_text(text)

    def complains(self, name, text):
        (self.base / f"{name}.err").write_text(text)

    def calls(self, name):
        path = self.base / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def json_reads(self):
        return sum("--json" in call for call in self.calls("squeue"))


@pytest.fixture
def stand(tmp_path):
    return Stand(tmp_path)


@pytest.fixture
def client(stand):
    made = CommandLineClient(stand.env, timeout=2)
    yield made
    made.close()


def test_an_unchanged_queue_is_not_read_twice(stand, client):
    """While squeue's text output is unchanged, the JSON is not read again."""
    first = client.jobs()
    assert client.jobs() == first
    assert stand.json_reads() == 1


def listed(*jobs):
    """The stand-in's queue: text lines and JSON records of jobs with these ids and states."""
    lines = "".join(f"{number}|{number}|{state}|None|1|0||1|1|0|1|main|7\n" for number, state in jobs)
    records = [dict(PENDING_22, job_id=number, name=state) for number, state in jobs]
    return lines, json.dumps({"jobs": records})


def test_only_changed_jobs_are_read_where_squeue_can(stand, client):
    """A changed, a written, a new and a gone job cost one read of the first three; the others stay the same objects."""
    lines, records = listed((1, "A"), (2, "A"), (3, "A"), (4, "A"))
    stand.says("squeue", lines)
    stand.says("squeue.json", records)
    before = {job.slurm_job_id: job for job in client.jobs()}
    client.hold("3")
    stand.says("squeue", listed((1, "A"), (2, "B"), (3, "A"), (5, "A"))[0])
    stand.says("squeue.json", listed((2, "B"), (3, "A"), (5, "A"))[1])
    after = {job.slurm_job_id: job for job in client.jobs()}
    assert [(job_id, job.name) for job_id, job in after.items()] == [("1", "A"), ("2", "B"), ("3", "A"), ("5", "A")]
    assert stand.calls("squeue")[-1].endswith("--json -j 2,5,3")
    assert after["1"] is before["1"]
    stand.says("squeue", listed((1, "A"), (2, "B"), (3, "A"))[0])
    assert [job.slurm_job_id for job in client.jobs()] == ["1", "2", "3"]
    assert stand.json_reads() == 2


def test_slurm_22_is_asked_for_texts(stand, client):
    """Its squeue prints the JSON of all jobs, whichever is asked for; a record's text costs less."""
    stand.says("sinfo", "slurm-wlm 22.05.8\n")
    stand.says("scontrol", text_of({"job_id": 1, "name": "my job"}))
    (stand.base / "bin" / "scontrol").write_text(SAY.format(base=stand.base))
    assert [job.name for job in client.jobs()] == ["my job"]
    assert stand.calls("scontrol") == ["-a -d show job 1"]
    assert stand.json_reads() == 0


def test_a_changed_queue_is_read_again(stand, client):
    """Any difference in squeue's text output makes the client read the JSON."""
    client.jobs()
    stand.says("squeue", "1|1|RUNNING|None|1|5|n1|1|1|0|1|main|7\n")
    client.jobs()
    assert stand.json_reads() == 2


def test_slurms_forecast_of_a_start_is_no_change(stand, client):
    """Slurm's start forecast changes all the time; the begin time of a job that waits for one does count."""
    for forecast in ("100", "200"):
        stand.says("squeue", f"1|1|PENDING|Resources|1|5||1|1|0|1|main|{forecast}\n")
        client.jobs()
    assert stand.json_reads() == 1
    for begin in ("100", "200"):
        stand.says("squeue", f"1|1|PENDING|BeginTime|1|5||1|1|0|1|main|{begin}\n")
        client.jobs()
    assert stand.json_reads() == 3


@pytest.mark.parametrize(
    "write",
    [
        lambda client: client.hold("1"),
        lambda client: client.stamp("1", "metasched:x"),
        lambda client: client.stamp("1", "with blanks"),
        lambda client: client.signal(["1"], "SIGUSR2"),
        lambda client: client.set_requeue("1"),
    ],
)
def test_a_written_job_is_read_again(stand, client, write):
    """The effect of a write may not show in squeue's text output."""
    stand.says("scancel", "")
    client.jobs()
    stand.says("squeue", "RUNNING\n")  # for the write, which may ask for the job's state
    write(client)
    stand.says("squeue", QUEUE)
    client.jobs()
    assert stand.json_reads() == 2


@pytest.mark.parametrize(("said", "boot_time"), [("BOOT_TIME               = 1795451539\n", 1795451539.0), ("", None)])
def test_the_boot_time_is_read_from_the_configuration(stand, client, said, boot_time):
    """A release that does not tell it is no error."""
    (stand.base / "bin" / "scontrol").write_text(SAY.format(base=stand.base))
    stand.says("scontrol", f"Configuration data as of 1795451540\n{said}ClusterName             = test\n")
    assert client.boot_time() == boot_time


def test_a_failed_read_is_repeated(stand, client):
    """Nothing of a failed read is cached."""
    stand.complains("squeue.json", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    with pytest.raises(SlurmUnavailableError):
        client.jobs()
    (stand.base / "squeue.json.err").unlink()
    assert len(client.jobs()) == 1


def test_an_unreadable_record_is_left_out_and_logged_once(stand, client, caplog):
    """A message at every poll would fill the log."""
    stand.says("scancel", "")
    stand.says("squeue.json", json.dumps({"jobs": [RUNNING_22 | {"job_state": "DANCING"}, PENDING_22 | {"job_id": 1}]}))
    with caplog.at_level(logging.WARNING):
        assert [job.job_id for job in client.jobs()] == [1]
        client.hold("1")
        client.jobs()
    assert caplog.text.count("job 21") == 1


def test_nodes_are_read(stand, client):
    """The nodes are read by one command; the first read also asks for Slurm's release."""
    stand.says("sinfo", "slurm-wlm 22.05.8\n")
    stand.says("sinfo.json", json.dumps({"nodes": [NODE_22]}))
    assert [node.name for node in client.nodes()] == ["n1"]
    client.nodes()
    assert stand.calls("sinfo") == ["--version", "--json -a", "--json -a"]


MEET = """#!/bin/bash
touch {base}/$(basename $0).met
until [[ -f {base}/squeue.met && -f {base}/scontrol.met ]]; do sleep 0.01; done
case "$(basename $0) $*" in
  squeue*--json*) cat {base}/squeue.json.out ;;
  squeue*) cat {base}/squeue.out ;;
  *) cat {base}/nodes.out ;;
esac
"""


def test_jobs_and_nodes_are_read_at_the_same_time(stand):
    """Each command ends only once the other one has begun."""
    for name in ("squeue", "scontrol"):
        (stand.base / "bin" / name).write_text(MEET.format(base=stand.base))
    stand.says("nodes", json.dumps({"nodes": [NODE_24]}))
    jobs, nodes = CommandLineClient(stand.env, timeout=30).jobs_and_nodes()
    assert ([job.job_id for job in jobs], [node.name for node in nodes]) == ([1], ["n1"])


@pytest.mark.parametrize(("name", "said"), [("squeue", "Socket timed out"), ("scontrol", "Permission denied")])
def test_an_error_of_either_read_is_raised(stand, client, name, said):
    """Whichever of jobs and nodes cannot be read, its typed error comes, and the next read is whole."""
    (stand.base / "bin" / "scontrol").write_text(SAY.format(base=stand.base))
    stand.says("scontrol.json", json.dumps({"nodes": [NODE_24]}))
    client.nodes()
    wrong = f"{name}.json" if name == "scontrol" else name
    stand.complains(wrong, said)
    with pytest.raises(SlurmUnavailableError if name == "squeue" else SlurmPermissionError, match=said):
        client.jobs_and_nodes()
    (stand.base / f"{wrong}.err").unlink()
    jobs, nodes = client.jobs_and_nodes()
    assert (len(jobs), len(nodes)) == (1, 1)


def test_later_releases_list_nodes_by_another_command(stand, client):
    """Since 23.02 sinfo groups equal nodes, so scontrol lists them."""
    stand.says("sinfo", "slurm 23.02.0\n")
    (stand.base / "bin" / "scontrol").write_text(SAY.format(base=stand.base))
    stand.says("scontrol.json", json.dumps({"nodes": [NODE_22]}))
    assert [node.name for node in client.nodes()] == ["n1"]
    assert stand.calls("scontrol") == ["--all --json show nodes"]


@pytest.mark.parametrize("read", [CommandLineClient.settings, CommandLineClient.nodes])
def test_an_unsupported_release_is_refused(stand, client, read):
    """The error comes before any other command, and names both releases."""
    stand.says("sinfo", "slurm-wlm 21.08.8-2\n")
    with pytest.raises(SlurmTooOldError, match=r"21\.08.*22\.05"):
        read(client)
    assert not stand.calls("scontrol")


def test_output_format_variables_do_not_reach_the_commands(stand, client):
    """SQUEUE_FORMAT and similar variables would change the commands' output."""
    (stand.base / "bin" / "squeue").write_text(f"#!/bin/bash\nenv > {stand.base}/env\necho '{{\"jobs\": []}}'\n")
    client.jobs()
    seen = dict(line.split("=", 1) for line in (stand.base / "env").read_text().splitlines())
    assert "SQUEUE_FORMAT" not in seen
    assert (seen["SLURM_TIME_FORMAT"], seen["SLURM_BITSTR_LEN"], seen["LC_ALL"]) == ("%s", "0", "C")


@pytest.mark.parametrize(
    ("complaint", "kind"),
    [
        (
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            SlurmCommandError,
        ),
        ("scancel: error: Kill job error on job id 9: Invalid job id specified", NoSuchJobError),
        ("Unexpected message received for job 9", SlurmUnavailableError),
        ("Access/permission denied for job 9", SlurmPermissionError),
        ("Invalid user id for job 9", SlurmPermissionError),
        ("Job is no longer pending execution for job 9", WrongJobStateError),
        ("Job has already finished for job 9", WrongJobStateError),
        ("Requested operation is presently disabled for job 9", WrongJobStateError),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", SlurmUnavailableError),
        ("error: Error binding slurm stream socket: Address already in use", SlurmUnavailableError),
        ("error: Socket timed out on send/recv operation", SlurmUnavailableError),
        ("slurm_load_jobs error: Slurm backup controller in standby mode", SlurmUnavailableError),
        ("scontrol: fatal: Unable to process configuration file", SlurmUnavailableError),
        ("slurm_load_jobs error: Transport endpoint is not connected", SlurmUnavailableError),
        ("slurm_load_jobs error: Connection reset by peer", SlurmUnavailableError),
        ("error: slurm_msg_sendto: msg_type=1008: Unexpected missing socket error", SlurmUnavailableError),
    ],
)
def test_complaints_become_typed_errors_with_slurms_words(stand, client, complaint, kind):
    """The error's type decides the reaction; its message has Slurm's words for people."""
    stand.complains("squeue", complaint)
    with pytest.raises(kind, match="squeue") as caught:
        client.jobs()
    assert type(caught.value) is kind
    assert complaint in str(caught.value)


def test_a_failure_without_a_word_means_that_slurm_is_unavailable(stand, client):
    """`scontrol show config` fails without a message while slurmctld is away."""
    stand.complains("squeue", "")
    with pytest.raises(SlurmUnavailableError, match="exit status 1 without a message"):
        client.jobs()


def test_a_missing_command_means_that_slurm_is_unavailable(tmp_path):
    """A missing command is a typed error, no traceback."""
    client = CommandLineClient({"PATH": str(tmp_path)})
    with pytest.raises(SlurmUnavailableError, match="squeue"):
        client.jobs()
    with pytest.raises(SlurmUnavailableError, match="scontrol"):
        client.hold("1")


def test_a_command_that_hangs_is_ended(stand):
    """The error says that the command took too long; whether it took effect is not known."""
    (stand.base / "bin" / "scancel").write_text("#!/bin/bash\nexec sleep 30\n")
    client = CommandLineClient(stand.env, timeout=0.3)
    stand.says("squeue", "RUNNING\n")
    with pytest.raises(SlurmTimeoutError, match="scancel"):
        client.signal(["1"], "SIGUSR2")


SIGNALLED = [str(number) for number in range(1, 13)]


@pytest.mark.parametrize("count", [3, 12])
def test_a_signal_that_one_job_refuses_has_reached_the_others(stand, client, count):
    """The error of a job that scancel names is that job's alone, and no job is sent the signal again."""
    says = "echo 'scancel: error: Kill job error on job id 2: Access/permission denied' >&2"
    (stand.base / "bin" / "scancel").write_text(f"#!/bin/bash\necho >> {stand.base}/scancels\n{says}\nexit 1\n")
    running = "".join(f"{number} RUNNING\n" for number in SIGNALLED) if count > MOST_SINGLE_READS else "RUNNING\n"
    stand.says("squeue", running)
    errors = client.signal(SIGNALLED[:count], "SIGUSR2")
    assert list(errors) == ["2"]
    assert str(errors["2"]) == "scancel: scancel: error: Kill job error on job id 2: Access/permission denied"
    assert len((stand.base / "scancels").read_text()) == 1


def test_a_job_that_ends_before_its_signal_is_no_outage(stand, client):
    """The command scancel fails without a word for such a job; Slurm tells afterwards that it no longer runs."""
    stand.says("squeue", "".join(f"{number} RUNNING\n" for number in SIGNALLED))
    ended = "".join(f"{number} {'COMPLETED' if number == '2' else 'RUNNING'}\n" for number in SIGNALLED)
    (stand.base / "ended").write_text(ended)
    (stand.base / "bin" / "scancel").write_text(f"#!/bin/bash\ncp {stand.base}/ended {stand.base}/squeue.out\nexit 1\n")
    errors = client.signal(SIGNALLED, "SIGUSR2")
    assert {job: str(error) for job, error in errors.items()} == {
        "2": "job 2 is COMPLETED: only a running job can be sent a signal"
    }


def test_a_signal_that_fails_without_an_explanation_failed_for_all_jobs(stand, client):
    """The daemon sends it again; a trainer that gets it twice stops once."""
    stand.says("squeue", "".join(f"{number} RUNNING\n" for number in SIGNALLED))
    (stand.base / "bin" / "scancel").write_text("#!/bin/bash\nexit 1\n")
    errors = client.signal(SIGNALLED, "SIGUSR2")
    assert {str(error) for error in errors.values()} == {"scancel: exit status 1 without a message"}
    assert list(errors) == SIGNALLED


def test_many_commands_share_one_scontrol(stand, client):
    """Each command is answered before the next is sent."""
    for number in range(1, 6):
        client.hold(str(number))
    assert stand.calls("scontrol") == ["start", *(f"hold {number}" for number in range(1, 6))]


def test_a_complaint_belongs_to_its_own_command(stand, client):
    """The command after a failed one succeeds."""
    with pytest.raises(NoSuchJobError, match="slurm_suspend error"):
        client.hold("9")
    client.hold("1")


def test_a_scontrol_that_ended_between_commands_is_started_again(stand, client):
    """A controller's restart or an admin's kill of scontrol has no lasting effect."""
    client.hold("1")
    client._scontrol._process.kill()
    client._scontrol._process.wait()
    client.hold("2")
    assert stand.calls("scontrol") == ["start", "hold 1", "start", "hold 2"]


@pytest.mark.parametrize("slurm_job_id", ["13", "14"])
def test_a_scontrol_that_ends_during_a_command_is_an_error_once(stand, client, slurm_job_id):
    """Whether the command took effect is not known; the next command has a new process."""
    with pytest.raises(SlurmUnavailableError, match=f"hold {slurm_job_id}"):
        client.hold(slurm_job_id)
    client.hold("1")
    assert stand.calls("scontrol")[-2:] == ["start", "hold 1"]


def test_a_scontrol_that_hangs_is_ended(stand):
    """The next command has a new process."""
    client = CommandLineClient(stand.env, timeout=0.3)
    began = time.monotonic()
    with pytest.raises(SlurmTimeoutError, match="hold 15"):
        client.hold("15")
    assert time.monotonic() - began < 20
    client.hold("1")
    client.close()


def test_closing_ends_the_process_and_is_repeatable(stand):
    """Closing leaves neither a zombie nor an open file."""
    client = CommandLineClient(stand.env)
    client.hold("1")
    process = client._scontrol._process
    client.close()
    client.close()
    assert process.returncode is not None


@pytest.mark.parametrize(
    "write",
    [
        lambda client: client.hold("1"),
        lambda client: client.stamp("1", "two words"),
        lambda client: client.signal(["1"], "SIGUSR2"),
    ],
)
def test_forbidden_arguments_are_not_sent(stand, write):
    """No method sends an argument that scontrol would misread."""

    def refuse():
        raise RuntimeError("another daemon took over")

    stand.says("squeue", "RUNNING\n")
    client = CommandLineClient(stand.env, before_write=refuse)
    with pytest.raises(RuntimeError):
        write(client)
    assert not any(stand.calls(name) for name in ("scontrol", "scancel"))


def test_text_with_blanks_is_sent_by_a_separate_process(stand, client):
    """On the pipe, scontrol keeps the quotes that blanks need."""
    client.stamp("1", "metasched:x bad tag")
    assert stand.calls("scontrol") == ["argv update JobId=1 AdminComment=metasched:x bad tag"]


@pytest.mark.parametrize(
    "word", ["a b", "a\nb", "a\tb", 'a"b', "a'b", "!!", "a\\b", "", "ü", "a\x00b", "x" * 5000, "a\x1bb"]
)
def test_words_that_scontrol_would_misread_do_not_fit(word):
    """Such words could be a second command, or join two arguments."""
    assert not fits(["update", word])
    with pytest.raises(InvalidArgumentError):
        ScontrolPipe({}).command(["update", word], 1)


class TestRacks:
    """Racks come from ``scontrol show topology``, which is rarely read."""

    @pytest.fixture
    def stand(self, tmp_path):
        made = Stand(tmp_path)
        (tmp_path / "bin" / "scontrol").write_text(SAY.format(base=tmp_path))
        return made

    def test_the_topology_is_read_once_in_five_minutes(self, stand, client, monkeypatch):
        """A poll in between runs no command."""
        stand.says("scontrol", "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n")
        for _ in range(2):
            assert client.racks() == {"n1": "s1", "n2": "s1"}
        assert stand.calls("scontrol") == ["show topology"]
        stand.says("scontrol", "")
        later = time.monotonic() + 301
        monkeypatch.setattr(time, "monotonic", lambda: later)
        assert client.racks() == {}

    @pytest.mark.parametrize("complaint", ["invalid entity:topology for keyword:show", ""])
    def test_a_slurm_without_topology_has_no_racks(self, stand, client, complaint, caplog):
        """The log says so once."""
        (stand.complains if complaint else stand.says)("scontrol", complaint)
        with caplog.at_level(logging.INFO):
            for _ in range(2):
                assert client.racks() == {}
                client._racks_read = None
        assert caplog.text.count("nodes have no racks") == 1

    def test_an_absent_controller_is_unavailable(self, stand, client):
        """The next poll asks again."""
        stand.complains("scontrol", "Unable to contact slurm controller (connect failure)")
        with pytest.raises(SlurmUnavailableError):
            client.racks()
        (stand.base / "scontrol.err").unlink()
        stand.says("scontrol", "BlockName=b1 BlockIndex=0 Nodes=n1 BlockSize=1\n")
        assert client.racks() == {"n1": "b1"}


def test_only_a_command_that_is_not_found_asks_for_slurm_on_path():
    """A null character in an argument has nothing to do with PATH."""
    for argv, message in (
        (["/nowhere/squeue"], "No such file or directory.*; is Slurm installed here and on PATH"),
        (["squeue", "\0"], "^cannot start squeue: embedded null byte$"),
    ):
        with pytest.raises(SlurmUnavailableError, match=message):
            run_command(argv, timeout=2)


READS = {"settings", "boot_time", "jobs", "nodes", "jobs_and_nodes", "reservations", "racks", "associations"}
READS |= {"batch_script", "close"}
WRITES = {
    name: list(inspect.signature(method).parameters)[1:]
    for name, method in vars(SlurmClient).items()
    if inspect.isfunction(method) and not name.startswith("_") and name not in READS
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_of_the_read_only_client_starts_no_process(write, monkeypatch):
    """Each write of the contract returns at once: no command asks Slurm first, and the job need not exist."""
    monkeypatch.setattr(subprocess, "Popen", None)
    client = ReadOnlyClient({"PATH": "/nowhere"})
    assert not getattr(client, write)(*WRITES[write])  # None, or no errors
