"""Processes that run a Python script, forked from one that has loaded torch: a start takes a moment, not seconds.

All of them die with the one that made the nursery, however it ends.
"""

import contextlib
import ctypes
import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PR_SET_PDEATHSIG = 1


class Nursery:
    """Starts scripts and knows how they ended. A context manager: at its end they are all dead."""

    def __init__(self):
        environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__))]
        self._process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def start(self, argv, environ, output):
        """The pid of a process that runs the script `argv[0]`, in a session of its own."""
        return self._ask({"argv": list(map(str, argv)), "environ": environ, "output": str(output)})

    def exit_code(self, pid):
        """As subprocess has it, None while it runs."""
        return self._ask(pid)

    def close(self):
        """Kill them all."""
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


def die_with_parent():
    """Have the kernel kill this process when its parent is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(questions, answers):
    """Answer questions until there are none; in a forked child, return what it is to run."""
    codes = {}
    for line in questions:
        question = json.loads(line)
        if isinstance(question, dict):
            nursery = os.getpid()
            pid = os.fork()
            if pid == 0:
                os.setsid()
                die_with_parent()
                if os.getppid() != nursery:
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
    import trainer_shim.session.context_startup  # noqa: PLC0415, F401  imports torch before the fork

    task = serve(sys.stdin, sys.stdout)
    if task is None:
        return
    output = os.open(task["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.environ.update(task["environ"])
    sys.argv = task["argv"]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
