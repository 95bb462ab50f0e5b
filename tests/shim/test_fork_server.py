"""Forked processes are like new ones."""

import pytest

pytestmark = pytest.mark.shim

CODE = """
import sys
import numpy
print(sys.path[0], numpy.random.randint(2**31))
"""


def test_forked_processes_are_like_new_ones(run_code, tmp_path):
    """Each process draws its own numbers with NumPy's global generator, and imports from its script's folder first."""
    codes, outputs = run_code(CODE, size=2)
    assert codes == [0, 0]
    folders, numbers = zip(*(output.split() for output in outputs), strict=True)
    assert folders == (str(tmp_path),) * 2
    assert len(set(numbers)) == 2
