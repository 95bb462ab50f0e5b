"""One process of libFuzzer: ``python -m tests.fuzz.worker TARGET RUNS SECONDS FINDINGS CORPUS``; libFuzzer ends it."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["metasched", "trainer_shim"]):
    from tests.fuzz.targets import inputs, run_target

from tests.fuzz.mutations import mutated

LIMITS = ("-timeout=10", "-rss_limit_mb=2048", "-max_len=100000", "-print_final_stats=1")  # seconds, MiB, bytes


def variant(data: bytes, max_size: int, seed: int) -> bytes:
    """A variant of an input: half of them are libFuzzer's own, half know JSON and hostile values."""
    rng = Random(seed)  # noqa: S311  a seeded sequence
    other: bytes = atheris.Mutate(data, max_size) if rng.random() < 0.5 else mutated(data, rng)
    return other[:max_size]


def main() -> None:
    """Fuzz one target."""
    name, runs, seconds, findings, corpus = sys.argv[1:]
    for number, data in enumerate(inputs(name)):
        (Path(corpus) / str(number)).write_bytes(data)
    size = (f"-runs={runs}", f"-max_total_time={seconds}")
    arguments = [sys.argv[0], *LIMITS, *size, f"-artifact_prefix={findings}/", corpus]
    atheris.Setup(arguments, lambda data: run_target(name, data), custom_mutator=variant)
    atheris.Fuzz()


main()
