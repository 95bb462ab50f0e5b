"""No parser raises anything but its typed errors, for inputs that were findings once and for hostile variants."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.mutations import mutated
from tests.fuzz.targets import CORPUS, TARGETS, inputs, run_target

VARIANTS = 40


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_are_good_or_refused_in_words(name: str) -> None:
    for data in inputs(name):
        run_target(name, data)


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_variants_are_refused_in_words(name: str) -> None:
    rng, known = Random(name), inputs(name)  # noqa: S311  a seeded sequence
    for _ in range(VARIANTS):
        run_target(name, mutated(rng.choice(known), rng))


def test_the_corpus_belongs_to_known_targets() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)
