"""How the processes of a world find each other, and see whether all of them are there, each on a GPU of its own."""

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

JOIN_SECONDS = 300  # seconds in which all ranks have to come, unless TRAINER_SHIM_PATIENCE says otherwise
CONNECT_SECONDS = 5.0  # seconds for a word with somebody who may be a stranger
VERDICT_SECONDS = 2.0  # seconds for the others to read why rank 0 goes, and takes the store with it


def rendezvous(world: World, device: torch.device, environ: Mapping[str, str]) -> Store:
    """The store of this world, once all its ranks have come; MASTER_PORT then is its port.

    Raises:
        VariableError: TRAINER_SHIM_PATIENCE is no number above 0.
        WorldError: they have not come in time, or they are not what was announced.
    """
    if world.master is None:
        return HashStore()
    patience = integer(environ, "TRAINER_SHIM_PATIENCE") or JOIN_SECONDS
    if environ.get("TRAINER_SHIM_PATIENCE") == "0":
        raise VariableError("TRAINER_SHIM_PATIENCE is '0': it must be seconds to wait for all ranks, above 0")
    until = time.monotonic() + patience
    libuv = environ.get("USE_LIBUV", "1") == "1"  # as torch itself has it: builds of distributions are without
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
                f"no word with rank 0 at {where} ({error}): it may have failed, as its own output would say, "
                "or another process has that port, or MASTER_ADDR is not its host"
            ) from error
    return store


@contextlib.contextmanager
def _announced_port(master: Master, port: int) -> Iterator[None]:
    """Tell everybody who asks at the first free port of the meeting point where the store is.

    Torch's own client would wait for ever for a word from a stranger that listens there.

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
            raise WorldError(f"no process can listen on a port of {ports} on {socket.gethostname()}: others have them")

        answer = f"{master.name} {port}\n".encode()
        threading.Thread(target=_serve_port, args=(listener, answer), name="trainer_shim listener", daemon=True).start()
        stack.callback(listener.shutdown, socket.SHUT_RDWR)  # which wakes the thread
        yield


def _serve_port(listener: socket.socket, answer: bytes) -> None:
    while listener.fileno() >= 0:
        with contextlib.suppress(OSError):
            visitor, _ = listener.accept()
            with visitor:
                visitor.settimeout(CONNECT_SECONDS)
                visitor.sendall(answer)


def _query_store_port(master: Master, until: float, patience: int) -> int:
    """The port of the store that rank 0 has opened.

    Raises:
        WorldError: nobody has told it in time.
    """
    expected = f"{master.name} ".encode()
    problem = "nobody has listened"
    for port in itertools.cycle(master.ports):
        if time.monotonic() > until:
            break
        try:
            address = master.address, port
            with socket.create_connection(address, CONNECT_SECONDS) as connection, connection.makefile("rb") as file:
                said = file.readline(100)
            if said.startswith(expected) and said.endswith(b"\n"):
                return int(said[len(expected) :])
            problem = f"port {port} is another process's"
        except OSError as error:
            problem = f"port {port}: {error}"
        if port == master.ports[-1]:
            time.sleep(0.1)
    raise WorldError(
        f"rank 0 has not come to {master.address} within {patience} s ({problem}): see its output; "
        "MASTER_ADDR must be the host of rank 0, and TRAINER_SHIM_PATIENCE (seconds) sets how long to wait"
    )


def check_in(store: Store, world: World, place: str, until: float, patience: int) -> None:
    """Say that this rank is here, at `place`, and hear from rank 0 that all are.

    Raises:
        WorldError: the ranks are not what was announced.
        DistError: rank 0 has gone.
    """
    if store.add(f"rank {world.rank}", 1) > 1:
        raise WorldError(
            f"rank {world.rank} of {world.size} has come twice, now as process {os.getpid()} on {socket.gethostname()}:"
            " two trainings have the same MASTER_ADDR and MASTER_PORT, or a rank is set alike for several processes"
        )
    store.set(f"place {world.rank}", place)
    if store.add("came", 1) == world.size:
        store.set("all", "")
    if world.rank > 0:
        if not wait(store, "verdict", until + JOIN_SECONDS):
            raise WorldError("rank 0 does not answer any more, and its own output may say why")
        verdict = store.get("verdict").decode()
        if verdict:
            raise WorldError(verdict)
        return
    missing = [] if wait(store, "all", until) else [r for r in range(world.size) if not store.check([f"rank {r}"])]
    if missing:
        verdict = (
            f"{world.size - len(missing)} of {world.size} ranks have come within {patience} s, and not "
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
    """Whether the key is there in time. Torch's own wait hears no Ctrl-C, and says on stderr that it waits."""
    pause = 0.01
    while not store.check([key]):
        if time.monotonic() > until:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.2)
    return True


def shared_gpu_problem(places: list[str]) -> str | None:
    """What is wrong where two ranks have the same place, which is a GPU; several on a CPU are no crowd."""
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
    """Numbers in rising order, in words: "rank 1", "ranks 1 to 3, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    words = ", ".join(" to ".join(map(str, run)) for run in runs)
    return f"rank{'s' if len(numbers) > 1 else ''} {words}"
