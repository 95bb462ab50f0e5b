"""The parsers that are fuzzed: how each takes bytes, the errors that it may raise, and inputs to begin with.

A parser returns, or raises one of its typed errors. Every other exception is a finding.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import click
import msgspec

from metasched.cli.simulation_options import parse_policy
from metasched.configuration import config
from metasched.core import reasons
from metasched.core.errors import MetaschedError
from metasched.core.policy import installed_policies
from metasched.replay import snapshot_codec
from metasched.shared_dir import app_orders, published_status, reports
from metasched.shared_dir.mailbox import Mailbox
from metasched.simulator import results
from metasched.simulator.scenario import load_scenario
from metasched.simulator.traces.elasticflow import read_curves
from metasched.simulator.traces.gavel import read_gavel
from metasched.simulator.traces.helios import read_helios
from metasched.simulator.traces.microsoft import read_microsoft
from metasched.simulator.traces.philly import read_philly
from metasched.simulator.traces.sacct import read_sacct
from metasched.slurm import associations, field_parsers, hostlist, json_parser, tags, topology
from metasched.slurm.admin_comment import Stamp
from metasched.throughput.throughput_table import ThroughputTable
from tests.builders import job, running, snapshot
from trainer_shim.checkpointing.formats import framework_checkpoints, script_checkpoints
from trainer_shim.errors import ShimError
from trainer_shim.preemption import lease as shim_lease

ROOT = Path(__file__).parents[2]
UID = "0123456789abcdef"
NOW = 1.7e9
CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Target:
    """One parser.

    Attributes:
        parse: the parser, given the bytes of an input.
        errors: the errors that say that an input is bad.
        seeds: good inputs, from which others are made.
    """

    parse: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]


def inputs(name: str) -> list[bytes]:
    """The seeds of a target, then the inputs that were findings once."""
    return [*TARGETS[name].seeds, *(path.read_bytes() for path in sorted((CORPUS / name).glob("*")))]


def run_target(name: str, data: bytes) -> None:
    """Parse an input; an exception that leaves this function is a finding."""
    target = TARGETS[name]
    with suppress(*target.errors):
        target.parse(data)


@cache
def _directory() -> Path:
    """A directory for inputs of parsers that read files; in memory where the system has such a place."""
    memory = Path("/dev/shm")  # noqa: S108  the directory below it is private
    return Path(tempfile.mkdtemp(prefix="metasched-fuzz-", dir=memory if memory.is_dir() else None))


def _of_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """A parser of files as a parser of bytes."""

    def parse(data: bytes) -> object:
        path = _directory() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(path)

    return parse


def _of_text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """A parser of texts, as Slurm's output reaches it: bytes that are not UTF-8 are escaped."""
    return lambda data: read(data.decode("utf-8", "backslashreplace"))


@cache
def _wrapper() -> ModuleType:
    """The script ``metasched-run`` as a module."""
    loader = SourceFileLoader("metasched_run", str(ROOT / "slurm_scripts" / "metasched-run"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def _wrapper_lease(data: bytes) -> object:
    wrapper = _wrapper()
    try:
        return _of_file(lambda path: wrapper.read_lease(path, UID), "wrapper-lease.json")(data)
    except wrapper.LeaseError:
        return None


def _wrapper_uid(data: bytes) -> object:
    wrapper = _wrapper()
    try:
        return _of_file(wrapper.read_uid, "address")(data)
    except wrapper.LeaseError:
        return None


def _shim_lease(path: Path) -> object:
    return shim_lease.read_lease(path).batch(path)


def _daemon_lease(data: bytes) -> object:
    mailbox = Mailbox(_directory() / "shared")
    return _of_file(lambda _: mailbox.read_lease(UID), f"shared/mailbox/{UID}/lease.json")(data)


def _status(data: bytes) -> object:
    shared = _directory() / "status"
    return _of_file(lambda _: published_status.read(shared), "status/status.json")(data)


def _manifest(path: Path) -> object:
    try:
        return script_checkpoints._read_manifest(path)
    except script_checkpoints._DamagedError:
        return None


def _framework_manifest(path: Path) -> object:
    try:
        return framework_checkpoints._read_verified(path)
    except framework_checkpoints._DamagedError:
        return None


def _curves(path: Path) -> object:
    return read_curves(path.parent)


def _table(path: Path) -> object:
    return ThroughputTable.read(path)


def _gavel(path: Path) -> object:
    return read_gavel(path, _small_table())


@cache
def _small_table() -> ThroughputTable:
    path = _directory() / "small.json"
    path.write_bytes(_TABLE)
    return ThroughputTable.read(path)


def _hostlist_round_trip(text: str) -> object:
    names = hostlist.expand(text)
    assert set(hostlist.expand(hostlist.compress(names))) == set(names)
    return names


def _stamp(text: str) -> object:
    stamp = Stamp.read(text)
    assert stamp is None or Stamp.read(str(stamp)) is not None
    return stamp


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


_JOB = {
    "job_id": 7,
    "array_job_id": 0,
    "array_task_id": None,
    "array_task_string": "",
    "name": "train",
    "user_name": "ada",
    "job_state": "RUNNING",
    "submit_time": 1_700_000_000,
    "start_time": 1_700_000_100,
    "cpus": 4,
    "priority": 1,
    "tres_per_node": "gres:gpu:v100:2",
    "tres_req_str": "cpu=4,node=1",
    "gres_detail": ["gpu:v100:2(IDX:0-1)"],
    "job_resources": {
        "allocated_nodes": [
            {"nodename": "n1", "sockets": {"0": {"cores": {"0": "allocated"}}}, "memory_allocated": 4096}
        ]
    },
}
_NEW_JOB = _JOB | {
    "job_state": ["PENDING"],
    "submit_time": {"set": True, "infinite": False, "number": 1_700_000_000},
    "array_job_id": {"set": True, "infinite": False, "number": 7},
    "array_task_string": "1-5%2",
    "exit_code": {"return_code": {"set": True, "infinite": False, "number": 0}, "signal": {"id": 9}},
}
_NODE = {
    "name": "n1",
    "state": "idle",
    "state_flags": [],
    "cpus": 8,
    "real_memory": 64000,
    "gres": "gpu:v100:4(S:0)",
    "partitions": ["gpu"],
}
_LEASE = {
    "format": 1,
    "uid": UID,
    "address": "12",
    "run": 2,
    "round": 5,
    "round_end": 1.7e9,
    "gpus": 2,
    "gpu_type": "v100",
    "nodes": {"n1": 2},
    "requeue": {"by": "slurm", "exit_code": 85},
    "signal": "SIGUSR2",
    "stop": {"run": 2, "requested": 1.7e9, "deadline": 1.7e9, "reason": "smaller"},
    "trials": {"gpus": [1], "steps": 10},
    "batch": {"plan": 1, "per_gpu": 8, "accumulation": 2, "theta": [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 2.0]},
}
_STEPS = {
    "v": 1,
    "kind": "steps",
    "t": 1.7e9,
    "step": 10,
    "steps": 5,
    "samples": 80,
    "seconds": 1.5,
    "loss": 0.5,
    "world_size": 2,
    "global_batch": 16,
    "per_gpu_batch": 8,
    "accumulation": 1,
    "progress": 9.5,
    "grad_square": 0.1,
    "grad_variance": 2.0,
}
_ORDERS = b"".join(
    _json({"v": 1, "kind": "order", "uid": f"{UID}_{task}", "max_gpus": 2, "end": bool(task), "words": "w"}) + b"\n"
    for task in range(2)
)
_PHILLY_JOB = {
    "status": "Pass",
    "vc": "a",
    "jobid": "j1",
    "user": "u",
    "submitted_time": "2017-10-09 07:01:17",
    "attempts": [
        {
            "start_time": "2017-10-09 07:02:17",
            "end_time": "2017-10-09 09:02:17",
            "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}],
        }
    ],
}
_TABLE = _json(
    {
        "v100": {
            "('A', 1)": {"null": 10.0, "('A', 1)": [6.0, 6.0]},
            "('A', 2)": {"null": 18.0},
        },
        "v100_unconsolidated": {"('A', 2)": {"null": 15.0}},
    }
)
_MANIFEST = {
    "format": 1,
    "bytes": 10,
    "crc32": 7,
    "sharded": [],
    "progress": {"step": 3, "samples": 48, "epoch": 0, "cursor": 48},
    "order": {},
}
_FRAMEWORK_MANIFEST = {
    "format": framework_checkpoints.FORMAT,
    "path": "step-3",
    "step": 3,
    "files": {"": [10, 7]},
    "facts": {},
}
_GAVEL_LINE = "A\tpython main.py\t/tmp\t-n\t0\t100\t1\t1.0\t-1\t0.0\n"
_SACCT = (
    "JobID|JobName|User|Account|Submit|ElapsedRaw|AllocTRES\n"
    "7|train|ada|lab|2025-01-01T10:00:00|3600|cpu=4,gres/gpu=2,gres/gpu:v100=2\n"
)
_HELIOS = (
    "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue,vc\n"
    "7,u,2,4,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:10,2020-04-01 01:00:10,3600,10,vc\n"
)
_MICROSOFT = "job_id,submission_time,duration,num_gpu\nj,100,3600,2\n"
_SCENARIO = b'[[nodes]]\ncount = 2\ngpus = 4\ngpu_type = "v100"\n[workload]\nformat = "philly"\npath = "log.json"\n'
_CONFIG = b'[paths]\nshared = "/shared"\nstate = "/state"\n[policy]\nname = "las"\n'
_ASSOCIATIONS = (
    b"ClusterName=c Account=root UserName= Partition= ID=1 SharesRaw/Norm/Level/Factor=1/0.00/1/0.00\n"
    b"ClusterName=c Account=lab UserName=ada(1001) ParentAccount=root(1) GrpTRES=gres/gpu=4(2) MaxJobs=3(1)\n"
    b"QOS=normal(1) GrpTRES=gres/gpu:v100=8(0) User Limits={ada(1) MaxJobsPU=4(0) MaxTRESPU=gres/gpu=2(1)}\n"
)
_RESERVATION = (
    b"ReservationName=m StartTime=1700000000 EndTime=1700003600 Nodes=n[1-2] Users=ada,-bob Flags=MAINT,IGNORE_JOBS\n"
)
_JOB_STATUS = published_status.JobStatus(
    *("a", "7", "train", "ada", None, "running", 2, 1, 4, "yes", "", {"n1": 2}, "v100", NOW, NOW, 1, 0),
    *(10.0, 5.0, 5.0, 3.0, 10, 1.0, 0.5, (1, 2)),
)
_STATUS = published_status.Status(
    *(NOW, 2.0, "c", "h", 1, "las", 3, NOW, NOW, "ok"),
    nodes=(published_status.NodeStatus("n1", "v100", 4, 2, accepts=True),),
    jobs=(_JOB_STATUS,),
)
_RESULT = {
    "format": results.FORMAT,
    "fingerprint": "f",
    "policy": "las",
    "label": "las",
    "load": 1.0,
    "seed": 0,
    "metrics": {"jct_mean": 5.0},
    "jobs": [["a", 1, 0.0, 1.0, 5.0, 4.0, 0, 1.0]],
    "allocation": [[0.0, 1]],
    "capacity": 4,
    "seconds": [0.1, 0.1, 0.2],
}
_REASON = _json(reasons.to_json(reasons.Reason.of(reasons.Code.TIME_SHARES_DEGRADED, substitute="x")))

TARGETS: Mapping[str, Target] = {
    "squeue": Target(
        _of_text(json_parser.parse_jobs), (MetaschedError,), (_json({"jobs": [_JOB]}), _json({"jobs": [_NEW_JOB]}))
    ),
    "sinfo": Target(_of_text(json_parser.parse_nodes), (MetaschedError,), (_json({"nodes": [_NODE]}),)),
    "reservations": Target(_of_text(json_parser.parse_reservations), (MetaschedError,), (_RESERVATION,)),
    "gres": Target(_of_text(field_parsers.gpus), (ValueError,), (b"gres:gpu:v100:2", b"cpu=2,mem=1G,gres/gpu=4")),
    "shards": Target(_of_text(field_parsers.shards), (ValueError,), (b"shard:v100:2(IDX:0)", b"shard:1(0/2,1/2)")),
    "gpu-indices": Target(_of_text(field_parsers.gpu_indices), (ValueError,), (b"gpu:2(IDX:0-1)", b"shard:1(1/2)")),
    "array-tasks": Target(_of_text(field_parsers.array_tasks), (ValueError,), (b"1-5%2", b"1-49:2", b"1,3,7-9")),
    "fields": Target(_of_text(field_parsers.fields), (), (b"SwitchName=s1 Level=0 Nodes=n[1-2]",)),
    "host-list": Target(_of_text(_hostlist_round_trip), (ValueError,), (b"n[1-4,7],gpu-[08-12]", b"a[1-2]b[3,5]")),
    "topology": Target(
        _of_text(topology.parse_racks),
        (MetaschedError,),
        (b"SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n", b"BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n"),
    ),
    "associations": Target(_of_text(associations.parse), (MetaschedError,), (_ASSOCIATIONS,)),
    "tag": Target(
        _of_text(tags.parse_tag),
        (MetaschedError,),
        (b"metasched min_gpus=1 max_gpus=8 model=resnet weight=0.5", b"metasched preempt=no total_steps=1000"),
    ),
    "stamp": Target(_of_text(_stamp), (), (f"metasched:{UID}:held words not scheduled: why".encode(),)),
    "report": Target(lambda data: reports.parse_line(data, NOW), (reports.RefusedLineError,), (_json(_STEPS),)),
    "app-orders": Target(lambda data: app_orders.parse_orders(data, "array:5"), (), (_ORDERS,)),
    "wrapper-lease": Target(_wrapper_lease, (OSError,), (_json(_LEASE),)),
    "wrapper-uid": Target(_wrapper_uid, (OSError,), (UID.encode() + b"\n", UID.encode() + b"_12\n")),
    "shim-lease": Target(_of_file(_shim_lease, "shim-lease.json"), (ShimError,), (_json(_LEASE),)),
    "daemon-lease": Target(_daemon_lease, (MetaschedError,), (_json(_LEASE),)),
    "status": Target(_status, (MetaschedError,), (msgspec.json.encode(_STATUS),)),
    "manifest": Target(
        _of_file(_manifest, "checkpoint-3-x.json"), (ShimError,), (_json(_MANIFEST), _json(_MANIFEST | {"format": {}}))
    ),
    "framework-manifest": Target(
        _of_file(_framework_manifest, "incarnation-1/step-3.json"), (ShimError, OSError), (_json(_FRAMEWORK_MANIFEST),)
    ),
    "config": Target(
        _of_file(lambda path: config.load(path, installed_policies()), "metasched.toml"), (MetaschedError,), (_CONFIG,)
    ),
    "scenario": Target(_of_file(load_scenario, "scenario.toml"), (MetaschedError,), (_SCENARIO,)),
    "policy-option": Target(
        _of_text(parse_policy), (click.BadParameter,), (b"las:queue_thresholds_gpu_seconds=[3600]", b"pollux:p=-1")
    ),
    "reason": Target(_of_text(reasons.from_text), (MetaschedError,), (_REASON,)),
    "snapshot": Target(
        lambda data: snapshot_codec.decode(zlib.compress(data)),
        (snapshot_codec.CodecError,),
        (zlib.decompress(snapshot_codec.encode(snapshot([running(job(), "v100-0")]))),),
    ),
    "result": Target(_of_file(results.read, "result.json"), (MetaschedError,), (_json(_RESULT),)),
    "throughputs": Target(_of_file(_table, "throughputs.json"), (MetaschedError,), (_TABLE,)),
    "gavel-trace": Target(_of_file(_gavel, "gavel.trace"), (MetaschedError,), (_GAVEL_LINE.encode(),)),
    "philly-trace": Target(_of_file(read_philly, "philly.json"), (MetaschedError,), (_json([_PHILLY_JOB]),)),
    "sacct": Target(_of_file(read_sacct, "sacct.txt"), (MetaschedError,), (_SACCT.encode(),)),
    "helios-trace": Target(_of_file(read_helios, "helios.csv"), (MetaschedError,), (_HELIOS.encode(),)),
    "microsoft-trace": Target(_of_file(read_microsoft, "microsoft.tsv"), (MetaschedError,), (_MICROSOFT.encode(),)),
    "elasticflow-curves": Target(
        _of_file(_curves, "curves/model.csv"), (MetaschedError,), (b"global_batch_size,1,2\n16,1.5,2.5\n",)
    ),
}
