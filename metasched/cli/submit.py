"""`metasched submit`: sbatch with the tag written and checked first."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence

import click

from metasched.cli.formatting import clean, echo_json, json_option
from metasched.core.errors import MetaschedError
from metasched.slurm.tags import FIRST_WORD, parse_tag

# The tag's keys; docs/user/TAGS.md says more.
HELP = {
    "min_gpus": "Fewest GPUs that the job can run on.",
    "max_gpus": "Most GPUs that it can use.",
    "max_nodes": "Most nodes that it may be spread over.",
    "gpu_types": "Types that it accepts, with commas, such as v100,a100 [default: any].",
    "preempt": "How it may be stopped: checkpoint, suspend or no [default: checkpoint].",
    "weight": "Its share relative to others, above 0 and at most 1 [default: 1].",
    "total_steps": "Optimizer steps that it needs, if known.",
    "slo": "How long after its submission it should be done, such as 90m, 2h or 1.5d.",
    "model": "What it trains: your jobs of the same model are taken to be equally fast.",
    "trials": "Whether its script, which uses the shim, may be tried for some steps at other sizes: yes or no.",
}
_TIMEOUT_SECONDS = 60.0
_COMMENT = re.compile(r"--comment(=.*)?", re.DOTALL)
# sbatch's options that take no value from the next word; of all others, known to us or not, that is the value.
_FLAG = re.compile(
    "--(bell|consolidate-segments|contiguous|exclusive|get-user-env|help|hold|ignore-pbs|nice|no-bell|no-kill|no-requeue"
    "|overcommit|oversubscribe|parsable|propagate|quiet|reboot|requeue|resv-ports|spread-job|spread-segments|stepmgr"
    "|test-only|usage|use-min-nodes|verbose|version|wait|whole|x11)"
)
_SHORT_FLAGS = "hHkOQsvVW"


class SubmitError(MetaschedError):
    """Slurm refused the job."""


def _tag_options(command: Callable[..., None]) -> Callable[..., None]:
    for key, text in reversed(list(HELP.items())):
        command = click.option(f"--{key.replace('_', '-')}", key, metavar="VALUE", help=text)(command)
    return command


@click.command("submit", short_help="Submit a job by sbatch, with its tag checked.")
@_tag_options
@json_option
@click.argument("sbatch", nargs=-1, required=True, metavar="-- [SBATCH OPTION]... SCRIPT [ARGUMENT]...")
def command(*, sbatch: tuple[str, ...], as_json: bool, **tag: str | None) -> None:
    """Submit a job for metasched: arguments after `--` go to sbatch, with the tag as its comment.

    The tag is checked before sbatch is called. Prints the job's id.
    """
    if any(_COMMENT.fullmatch(word) for word in _options(sbatch)):  # what follows the script is the script's
        msg = "leave out sbatch's --comment: metasched submit writes its tag there"
        raise click.UsageError(msg)
    comment = " ".join([FIRST_WORD, *(f"{key}={value}" for key, value in tag.items() if value is not None)])
    parse_tag(comment)
    slurm_job_id = _sbatch(["sbatch", "--parsable", f"--comment={comment}", *sbatch])
    if as_json:
        echo_json({"job": slurm_job_id, "comment": comment})
    else:
        click.echo(slurm_job_id)


def _options(words: Sequence[str]) -> Iterator[str]:
    """The options before the script, without values that are words of their own."""
    left = iter(words)
    for word in left:
        if not word.startswith("-") or word in {"-", "--"}:
            return
        yield word
        short = "" if word.startswith("--") else word[1:].lstrip(_SHORT_FLAGS)
        if len(short) == 1 or (word.startswith("--") and "=" not in word and not _FLAG.fullmatch(word)):
            next(left, None)


def _sbatch(argv: list[str]) -> str:
    """Call sbatch and return the new job's id; a script on standard input reaches sbatch.

    Raises:
        SubmitError: sbatch fails; the message quotes it.
    """
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except OSError as error:
        msg = f"sbatch cannot be run ({error.strerror}); is Slurm installed here and on PATH?"
        raise SubmitError(msg) from None
    except subprocess.TimeoutExpired:
        msg = f"sbatch did not answer within {_TIMEOUT_SECONDS:.0f} s; `squeue --me` says whether the job was taken"
        raise SubmitError(msg) from None
    if done.returncode:
        raise SubmitError(done.stderr.strip() or f"sbatch failed with exit code {done.returncode}")
    if done.stderr:
        click.echo(clean(done.stderr.rstrip("\n")), err=True)
    return done.stdout.strip().partition(";")[0]
