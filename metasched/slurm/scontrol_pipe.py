"""One long-lived ``scontrol`` process on pipes: 0.8 ms for a command instead of 6 ms for a process of its own.

scontrol reads commands from standard input and writes errors to standard error, which is unbuffered. Only standard
error is read here: a command without output there has succeeded. After each command a word is sent that scontrol does
not know; the complaint about that word marks the end of the answer.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from itertools import count

from metasched.slurm import timed_pipes
from metasched.slurm.errors import InvalidArgumentError, SlurmTimeoutError, SlurmUnavailableError

# scontrol splits lines at blanks, keeps both kinds of quotes, repeats the last command for "!!", and in some builds
# reads lines of at most 4095 bytes. So only words without these characters are sent, in shorter lines.
_BAD = frozenset(" \t\n\r\v\f\0\"'\\!")
_MAX_LINE = 4000


def fits(words: Sequence[str]) -> bool:
    """Whether scontrol reads the words of a command from a pipe unchanged."""
    return (
        len(" ".join(words)) < _MAX_LINE
        and all(words)
        and all(word.isascii() and word.isprintable() and not _BAD & set(word) for word in words)
    )


class ScontrolPipe:
    """The scontrol process; started by the first command, and again after it died or was killed."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self._marks = count()

    def command(self, words: Sequence[str], timeout: float) -> str:
        """Run one command, and return scontrol's complaint; "" after success.

        Raises:
            InvalidArgumentError: a word that scontrol would read as something else.
            SlurmTimeoutError: no answer in time; whether the command took effect is not known.
            SlurmUnavailableError: scontrol cannot be started, or ended during the command.
        """
        if not fits(words):
            raise InvalidArgumentError(f"not fit for a scontrol command: {words!a}")
        line = " ".join(words)
        mark = f"metasched-end-{next(self._marks)}"
        process = self._running()
        try:
            # Shorter than a pipe's buffer, which is empty: the write cannot block.
            timed_pipes.stream(process.stdin).write(f"{line}\n{mark}\n".encode())
            answer = self._read_until(process, mark.encode(), time.monotonic() + timeout)
        except (BrokenPipeError, EOFError) as error:
            self.close()
            raise SlurmUnavailableError(f"scontrol ended during {line!r}: {error}") from error
        except TimeoutError:
            self.close()
            raise SlurmTimeoutError(f"scontrol did not answer within {timeout:g} s: {line!r}") from None
        return answer.strip()

    def close(self) -> None:
        """End the scontrol process."""
        process, self._process = self._process, None
        if process is not None:
            timed_pipes.end(process)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            self._process = timed_pipes.start(
                ["scontrol"], self._env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        return self._process

    @staticmethod
    def _read_until(process: subprocess.Popen[bytes], mark: bytes, deadline: float) -> str:
        answer = b""
        try:
            for chunk in timed_pipes.chunks(process.stderr, deadline):
                answer += chunk
                # scontrol names the unknown word in one line of its own: "invalid keyword: ..."
                found = answer.find(mark)
                if found >= 0 and b"\n" in answer[found:]:
                    break
        except EOFError:
            raise EOFError(answer.decode(errors="replace").strip()[-500:]) from None
        return answer[: answer.rfind(b"\n", 0, answer.find(mark)) + 1].decode(errors="replace")
