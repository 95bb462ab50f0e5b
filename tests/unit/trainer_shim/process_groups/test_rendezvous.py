"""How ranks find each other: ports that are taken, ranks that do not come, or come twice, or share a GPU."""

import contextlib
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch

from tests.ports import free_ports
from trainer_shim.environment.world import Master, World
from trainer_shim.errors import VariableError, WorldError
from trainer_shim.process_groups import rendezvous as module
from trainer_shim.process_groups import script_group
from trainer_shim.process_groups.rendezvous import rendezvous, shared_gpu_problem

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Short waits; the port that is found goes to a copy of the environment."""
    monkeypatch.setattr(module, "VERDICT_SECONDS", 0.3)
    monkeypatch.setenv("MASTER_PORT", "1")


@pytest.fixture
def ports():
    """Three free ports."""
    return free_ports(3)


def join_all(size, master, ranks, patience):
    """What each of the ranks gets: a store or an error."""

    def one(rank):
        try:
            return rendezvous(World(rank, size, rank, master), CPU, {"TRAINER_SHIM_PATIENCE": str(patience)})
        except WorldError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, ranks))


def wait_for_listener(port):
    end = time.monotonic() + 60
    while True:
        assert time.monotonic() < end
        with contextlib.suppress(OSError):
            return socket.create_connection(("127.0.0.1", port)).close()


def test_all_come(ports):
    """Ranks that all come share a store, whose port the environment says; without a name it is the given port."""
    for name, order in [("ours", [2, 1, 0]), (None, [0, 1, 2])]:
        stores = join_all(3, Master("127.0.0.1", ports[:1], name), order, 60)
        stores[0].set("key", "value")
        assert [store.get("key") for store in stores] == [b"value"] * 3
        assert os.environ["MASTER_PORT"] == str(stores[0].port)
        assert (stores[0].port == ports[0]) == (name is None)


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_suspension_uses_up_no_collective_s_time(monkeypatch, gpus):
    """No backend gives up on a collective because of `collective_timeout`, whose clock stops in a suspension."""
    limits = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("torch.cuda.set_device", lambda _: None)
    monkeypatch.setattr(script_group, "rendezvous", lambda *_: None)
    for name in ("init_process_group", "new_group"):
        monkeypatch.setattr(script_group.dist, name, lambda *_, timeout, **__: limits.append(timeout.days))
    for name in ("PrefixStore", "announce_first_failure"):
        monkeypatch.setattr(script_group, name, lambda *_: None)
    for size, groups in [(1, 1), (2, 1 + gpus)]:
        limits.clear()
        with patch.dict(os.environ):
            script_group.ScriptGroup(World(0, size, 0, None), collective_timeout=600.0).watchdog.close()
        assert limits == [7] * groups


def test_ports_that_are_taken(ports):
    """All ranks skip a port on which another program, or another training, listens."""
    with socket.socket() as listener:
        listener.bind(("", ports[0]))
        listener.listen()
        other = Master("127.0.0.1", ports[1:2], "other")
        with ThreadPoolExecutor(1) as pool:
            begun = pool.submit(join_all, 2, other, [0], 60)
            wait_for_listener(other.ports[0])
            ours = join_all(2, Master("127.0.0.1", ports, "ours"), [1, 0], 60)
            others = join_all(2, other, [1], 60) + begun.result()
    others[0].set("key", "other")
    ours[0].set("key", "ours")
    assert [store.get("key") for store in (*others, *ours)] == [b"other"] * 2 + [b"ours"] * 2


def test_no_free_port(ports):
    """The error of a rendezvous whose only port is taken names the port."""
    with socket.socket() as listener:
        listener.bind(("", ports[0]))
        listener.listen()
        for name in (None, "ours"):
            (error,) = join_all(2, Master("127.0.0.1", ports[:1], name), [0], 60)
            assert str(ports[0]) in str(error)


def test_half_a_world(ports):
    """The error on each rank that has joined in time says how many ranks have joined and which are missing."""
    errors = join_all(5, Master("127.0.0.1", ports[:1]), [0, 2], 5)
    for error in errors:
        assert "2 of 5 ranks have joined within 5 s, and not ranks 1, 3 to 4" in str(error)


def test_rank_0_does_not_join(ports):
    """The error of a rank that has waited for rank 0 names rank 0 and its address."""
    (error,) = join_all(2, Master("127.0.0.1", ports[:1], "ours"), [1], 1)
    assert "rank 0 has not joined at 127.0.0.1 within 1 s" in str(error)


def test_a_rank_joins_twice(ports):
    """Two processes with the same rank are an error that names the rank."""
    outcomes = join_all(3, Master("127.0.0.1", ports[:1]), [0, 1, 1], 3)
    assert sum("rank 1 of 3 has joined twice" in str(outcome) for outcome in outcomes) == 1


def test_torchrun_s_store_is_used_again(ports, monkeypatch):
    """Under torchrun every rank is a client of torchrun's store, also after a restart of the workers."""
    store = torch.distributed.TCPStore("127.0.0.1", ports[0], is_master=True, wait_for_workers=False)
    for attempt in ("0", "1"):
        agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": attempt}
        with ThreadPoolExecutor(2) as pool:
            worlds = [World(rank, 2, rank, Master("127.0.0.1", ports[:1])) for rank in range(2)]
            stores = list(pool.map(lambda world, agent=agent: rendezvous(world, CPU, agent), worlds))
        stores[0].set("key", attempt)
        assert store.get("key") == attempt.encode()


def test_one_gpu_each():
    """Two ranks on one GPU are an error that names them; on one CPU, or on GPUs of several hosts, they are not."""
    places = [json.dumps(place) for place in (["a", "GPU-1"], ["b", "GPU-1"], ["a", None], ["a", None])]
    assert shared_gpu_problem(places) is None
    assert "ranks 1 and 4 share one GPU of b" in shared_gpu_problem([*places, places[1]])


def test_alone():
    """A world of one process needs no address, and its rendezvous returns a store."""
    assert rendezvous(World(0, 1, 0, None), CPU, {}).num_keys() >= 0


@pytest.mark.parametrize("patience", ["0", "soon", "-1"])
def test_bad_patience(ports, patience):
    """A time limit that is not a positive number of seconds is refused."""
    world = World(0, 2, 0, Master("127.0.0.1", ports))
    with pytest.raises(VariableError, match="TRAINER_SHIM_PATIENCE"):
        rendezvous(world, CPU, {"TRAINER_SHIM_PATIENCE": patience})
