"""Programs of the tests that `make` starts by name, and no test runs."""

import importlib

import pytest


@pytest.mark.parametrize("name", ["campaign", "kills", "soak"])
def test_a_program_imports_what_there_is(name):
    """A name that has moved is found here, before somebody starts the program."""
    assert callable(importlib.import_module(f"tests.{name}.__main__").main)
