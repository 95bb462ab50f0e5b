"""Processes that run a Python script, forked from one that has imported torch: a start takes a moment, not seconds.

All forked processes die with the process that made the server, however it ends. They share the seed of the hashes of
strings: tests that depend on the order of a set start real processes.
"""

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BASE = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
"""The variables of the server and of processes that start from nothing, unless a test gives others."""
PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.01


class ForkServer:
    """Starts scripts, and knows their exit codes. A context manager: at its end all forked processes are dead.

    The server imports `modules` besides torch, with the variables of `environ`.
    """

    def __init__(self, *modules, **environ):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server", *modules],
            cwd=ROOT,
            env=os.environ | BASE | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, argv, environ, output, directory=None):
        """The pid of a process that runs the script `argv[0]` in `directory`, in a session of its own.

        Its environment is that of the calling process, with the variables of `environ`.
        """
        task = {"argv": list(map(str, argv)), "environ": os.environ | environ, "output": str(output)}
        return self._ask(task | {"directory": str(directory or Path.cwd())})

    def exit_code(self, pid):
        """The exit code as subprocess has it, None while the process runs."""
        return self._ask(pid)

    def close(self):
        """Kill the processes that still run, and the server."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _ask(self, question):
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class ForkedProcess:
    """A process of a fork server, with what tests use of subprocess.Popen."""

    def __init__(self, server, *task):
        self._server = server
        self.pid = server.start(*task)

    def poll(self):
        """The exit code, None while the process runs."""
        return self._server.exit_code(self.pid)

    def wait(self, seconds):
        """The exit code; TimeoutExpired after `seconds`."""
        end = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), seconds)
            time.sleep(POLL_SECONDS)
        return code

    def send_signal(self, number):
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def start_process(server, argv, environ, output, directory):
    """A process that runs a Python script: forked by the server, or from nothing where that is None."""
    if server is not None:
        return ForkedProcess(server, argv, environ, output, directory)
    environ = os.environ | BASE | environ
    with output.open("w") as file:
        return subprocess.Popen(
            [sys.executable, *map(str, argv)],
            env=environ,
            cwd=directory,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def die_with_parent():
    """Have the kernel kill this process when its parent is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(questions, answers):
    """Answer questions until there are none; in a forked child, return the task that it is to run."""
    codes = {}
    for line in questions:
        question = json.loads(line)
        if isinstance(question, dict):
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                os.setsid()
                die_with_parent()
                if os.getppid() != server:
                    os._exit(1)
                return question
            codes[pid] = None
            answer = pid
        else:
            if codes[question] is None:
                ended, status = os.waitpid(question, os.WNOHANG)
                codes[question] = os.waitstatus_to_exitcode(status) if ended else None
            answer = codes[question]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    for pid in [pid for pid, code in codes.items() if code is None]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return None


def main():
    die_with_parent()
    import numpy  # noqa: PLC0415, ICN001
    import torch._dynamo  # noqa: PLC0415, F401  every optimizer imports it; half of a start's CPU time

    import trainer_shim.session.context_startup  # noqa: PLC0415, F401

    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # else each fork copies what its garbage collector touches
    task = serve(sys.stdin, sys.stdout)
    if task is None:
        return
    output = os.open(task["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    faulthandler.enable()  # a rank that hangs is ended by SIGABRT, and says where
    os.chdir(task["directory"])
    os.environ.update(task["environ"])
    seed = int.from_bytes(os.urandom(4), "little")
    numpy.random.seed(seed)  # noqa: NPY002  the global generator of a new process does not have the server's state
    sys.argv = task["argv"]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)  # the server's is the repository's root
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
