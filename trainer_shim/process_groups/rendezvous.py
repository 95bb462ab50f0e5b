"""The rendezvous: the processes of a world find each other, and check that all ranks are there, one on each GPU."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch.distributed import DistError, HashStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from trainer_shim.environment.job import integer
from trainer_shim.errors import VariableError, WorldError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainer_shim.environment.world import Master, World

JOIN_SECONDS = 300  # seconds in which all ranks have to join, unless TRAINER_SHIM_PATIENCE says otherwise
CONNECT_SECONDS = 5.0  # seconds for one exchange with a peer that may be a foreign process
VERDICT_SECONDS = 2.0  # seconds for the other ranks to read the verdict before rank 0 ends, and the store with it


def rendezvous(world: World, device: torch.device, environ: Mapping[str, str]) -> Store:
    """Return the store of this world when all ranks have joined; sets MASTER_PORT to the store's port.

    Raises:
        VariableError: TRAINER_SHIM_PATIENCE is no number above 0.
        WorldError: ranks are missing after the time limit, have joined twice, or share a GPU.
    """
    if world.master is None:
        return HashStore()
    patience = integer(environ, "TRAINER_SHIM_PATIENCE") or JOIN_SECONDS
    if environ.get("TRAINER_SHIM_PATIENCE") == "0":
        raise VariableError("TRAINER_SHIM_PATIENCE is '0': it must be seconds to wait for all ranks, above 0")
    until = time.monotonic() + patience
    libuv = environ.get("USE_LIBUV", "1") == "1"  # torch's own switch: builds of Linux distributions have no libuv
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun's store may outlive its workers
    with contextlib.ExitStack() as stack:
        try:
            if world.master.name is None:
                serves = world.rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
                address, port = world.master.address, world.master.ports[0]
                limit = timedelta(seconds=patience)
                store = TCPStore(
                    address, port, is_master=serves, timeout=limit, wait_for_workers=False, use_libuv=libuv
                )
            elif world.rank == 0:
                store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=libuv)
                stack.enter_context(_announced_port(world.master, store.port))
            else:
                port = _query_store_port(world.master, until, patience)
                store = TCPStore(world.master.address, port, is_master=False, use_libuv=libuv)
            os.environ["MASTER_PORT"] = str(store.port)
            members = PrefixStore(f"trainer_shim/{attempt}", store)
            check_in(members, world, _location(device), until, patience)
        except DistError as error:
            where = f"{world.master.address}, port {world.master.ports[0]}"
            raise WorldError(
                f"rank 0 does not answer at {where} ({error}): it may have failed, as its own output would say, "
                "or another process has that port, or MASTER_ADDR is not its host"
            ) from error
    return store


@contextlib.contextmanager
def _announced_port(master: Master, port: int) -> Iterator[None]:
    """Context manager: tell every rank that connects to the first free port of the rendezvous the store's port.

    The store itself does not listen there: torch's client would wait for ever for a foreign process on that port.

    Raises:
        WorldError: none of the ports is free.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for candidate in master.ports:
            with contextlib.suppress(OSError):
                listener.bind(("", candidate))
                listener.listen(128)
                break
        else:
            ports = ", ".join(map(str, master.ports))
            raise WorldError(f"rank 0 cannot listen on {socket.gethostname()}: other processes use the ports {ports}")

        answer = f"{master.name} {port}\n".encode()
        threading.Thread(target=_serve_port, args=(listener, answer), name="trainer_shim listener", daemon=True).start()
        stack.callback(listener.shutdown, socket.SHUT_RDWR)  # wakes the thread
        yield


def _serve_port(listener: socket.socket, answer: bytes) -> None:
    while listener.fileno() >= 0:
        with contextlib.suppress(OSError):
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(CONNECT_SECONDS)
                peer.sendall(answer)


def _query_store_port(master: Master, until: float, patience: int) -> int:
    """Ask rank 0 for the port of the store that it has opened.

    Raises:
        WorldError: rank 0 has not answered by the time `until`, seconds on the monotonic clock.
    """
    expected = f"{master.name} ".encode()
    problem = "no process has listened"
    for port in itertools.cycle(master.ports):
        if time.monotonic() > until:
            break
        try:
            address = master.address, port
            with socket.create_connection(address, CONNECT_SECONDS) as connection, connection.makefile("rb") as file:
                answer = file.readline(100)
            if answer.startswith(expected) and answer.endswith(b"\n"):
                return int(answer[len(expected) :])
            problem = f"port {port} is another process's"
        except OSError as error:
            problem = f"port {port}: {error}"
        if port == master.ports[-1]:
            time.sleep(0.1)
    raise WorldError(
        f"rank 0 has not joined at {master.address} within {patience} s ({problem}): see its output; "
        "MASTER_ADDR must be the host of rank 0, and TRAINER_SHIM_PATIENCE (seconds) sets how long to wait"
    )


def check_in(store: Store, world: World, place: str, until: float, patience: int) -> None:
    """Register this rank in the store, and wait for rank 0's verdict on whether all ranks are there.

    Args:
        store: the store of this start of the world.
        world: this process's rank and the number of ranks.
        place: the host and the GPU of this rank, as `_location` returns them.
        until: the time limit, seconds on the monotonic clock.
        patience: the same limit in seconds, for messages.

    Raises:
        WorldError: ranks are missing, have joined twice, or share a GPU.
        DistError: rank 0 has ended.
    """
    if store.add(f"rank {world.rank}", 1) > 1:
        raise WorldError(
            f"rank {world.rank} of {world.size} has joined twice, "
            f"the second time as process {os.getpid()} on {socket.gethostname()}: "
            "two trainings have the same MASTER_ADDR and MASTER_PORT, or a rank is set alike for several processes"
        )
    store.set(f"place {world.rank}", place)
    if store.add("came", 1) == world.size:
        store.set("all", "")
    if world.rank > 0:
        if not wait(store, "verdict", until + JOIN_SECONDS):
            raise WorldError("rank 0 does not answer any more: its own output may say why")
        verdict = store.get("verdict").decode()
        if verdict:
            raise WorldError(verdict)
        return
    missing = [] if wait(store, "all", until) else [r for r in range(world.size) if not store.check([f"rank {r}"])]
    if missing:
        verdict = (
            f"{world.size - len(missing)} of {world.size} ranks have joined within {patience} s, and not "
            f"{_ranges(missing)}: fewer processes were started than WORLD_SIZE (or the Slurm step) says, or some have "
            "failed before, as their output would say. TRAINER_SHIM_PATIENCE (seconds) sets how long to wait"
        )
    else:
        verdict = shared_gpu_problem([store.get(f"place {rank}").decode() for rank in range(world.size)]) or ""
    store.set("verdict", verdict)
    if verdict:
        time.sleep(VERDICT_SECONDS)
        raise WorldError(verdict)


def wait(store: Store, key: str, until: float) -> bool:
    """Return whether the key exists by the time `until`, seconds on the monotonic clock.

    Torch's own wait does not react to Ctrl-C, and writes to stderr that it waits.
    """
    pause = 0.01
    while not store.check([key]):
        if time.monotonic() > until:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.2)
    return True


def shared_gpu_problem(places: list[str]) -> str | None:
    """Return an error message if two ranks have the same GPU, else None; ranks on a CPU may share their host."""
    seen: dict[str, int] = {}
    for rank, place in enumerate(places):
        host, gpu = json.loads(place)
        if gpu is None:
            continue
        if place in seen:
            return (
                f"ranks {seen[place]} and {rank} share one GPU of {host}: start one process for each GPU "
                "(metasched-run does; else srun's --ntasks-per-node, or torchrun's --nproc-per-node)"
            )
        seen[place] = rank
    return None


def _location(device: torch.device) -> str:
    gpu = None
    if device.type == "cuda":
        gpu = str(getattr(torch.cuda.get_device_properties(device), "uuid", "")) or None
    return json.dumps([socket.gethostname(), gpu])


def _ranges(numbers: list[int]) -> str:
    """Return ascending rank numbers in words: "rank 1", "ranks 1 to 3, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    words = ", ".join(" to ".join(map(str, run)) for run in runs)
    return f"rank{'s' if len(numbers) > 1 else ''} {words}"
