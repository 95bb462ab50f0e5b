"""`metasched submit`: sbatch with the tag written and checked first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import click

from metasched.cli.json_output import echo_json, json_option
from metasched.presentation.formatting import clean
from metasched.slurm import command_runner
from metasched.slurm.tags import FIRST_WORD, parse_tag

# The help of the option for each key of the tag.
HELP = {
    "min_gpus": "Fewest GPUs that the job can run on.",
    "max_gpus": "Most GPUs that the job can use.",
    "sizes": "Numbers of GPUs on which the job can run, with commas, such as 1,2,4,8 [default: all in the range].",
    "max_nodes": "Most nodes of the job.",
    "gpu_types": "GPU types that the job accepts, with commas, such as v100,a100 [default: any].",
    "preempt": "How the job may be stopped: checkpoint, suspend or no [default: checkpoint].",
    "weight": "The job's weight relative to other jobs, from 0.001 to 1 [default: 1].",
    "total_steps": "Optimizer steps of the whole training, if known.",
    "slo": "Time from submission to the latest acceptable end, such as 90m, 2h or 1.5d.",
    "model": "Name of the trained model: your jobs of the same model are assumed to be equally fast.",
    "trials": "Whether the job, whose script uses the shim, may be profiled for some steps at other sizes: yes or no.",
    "app": "Name of the app that the job belongs to: your jobs of one app search one thing together.",
    "tuner": "Tuner that compares the app's jobs and ends the worse ones, with options: halving,eta=2,steps=10000.",
    "batch": "Who changes the batch size: adaptive (metasched, if the script consents), own (the script) or fixed.",
    "adapts": "With --batch own, the rule of the script: static, accordion, gns or schedule.",
    "regimes": "With --batch own, the most spans with one batch size that the training has.",
}
_COMMENT = re.compile(r"--comment(=.*)?", re.DOTALL)
# sbatch's options without a value. The next word is the value of every other option.
_FLAG = re.compile(
    "--(bell|consolidate-segments|contiguous|exclusive|get-user-env|help|hold|ignore-pbs|nice|no-bell|no-kill|no-requeue"
    "|overcommit|oversubscribe|parsable|propagate|quiet|reboot|requeue|resv-ports|spread-job|spread-segments|stepmgr"
    "|test-only|usage|use-min-nodes|verbose|version|wait|whole|x11)"
)
_SHORT_FLAGS = "hHkOQsvVW"


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
    if any(_COMMENT.fullmatch(word) for word in _options(sbatch)):
        raise click.UsageError("leave out sbatch's --comment: metasched submit writes its tag there")
    comment = " ".join([FIRST_WORD, *(f"{key}={value}" for key, value in tag.items() if value is not None)])
    checked = parse_tag(comment)
    if checked is not None and checked.tuner is not None:
        from metasched.apps.tuners.registry import make_tuner  # noqa: PLC0415  --help needs no tuners

        make_tuner(checked.tuner)
    slurm_job_id, warnings = command_runner.sbatch([f"--comment={comment}", *sbatch])
    if warnings:
        click.echo(clean(warnings), err=True)
    if as_json:
        echo_json("submit", {"job": slurm_job_id, "comment": comment})
    else:
        click.echo(slurm_job_id)


def _options(words: Sequence[str]) -> Iterator[str]:
    """Yield sbatch's options: the words before the script, without values that are words of their own."""
    left = iter(words)
    for word in left:
        if not word.startswith("-") or word in {"-", "--"}:
            return
        yield word
        short = "" if word.startswith("--") else word[1:].lstrip(_SHORT_FLAGS)
        if len(short) == 1 or (word.startswith("--") and "=" not in word and not _FLAG.fullmatch(word)):
            next(left, None)
