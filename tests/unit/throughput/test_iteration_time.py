import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.throughput.iteration_time import IterationParameters

THETA = IterationParameters(0.1, 0.01, 0.2, 0.03, 0.5, 0.05, 2.0)
SECONDS = st.floats(0.0, 100.0)
PARAMETERS = st.builds(
    IterationParameters, st.floats(1e-6, 100.0), SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, st.floats(1.0, 10.0)
)
CONFIGURATIONS = st.tuples(st.integers(1, 64), st.integers(1, 512), st.integers(1, 9), st.booleans())


def seconds(theta, gpus, per_gpu=10, accumulation=1, *, multi_node=False):
    return theta.iteration_seconds(gpus, per_gpu, accumulation, multi_node=multi_node)


def test_a_single_gpu_has_no_synchronisation():
    """Eq. 9: T_sync is 0 for one GPU, so that the iteration is its passes."""
    assert seconds(THETA, 1) == pytest.approx(0.2)
    assert seconds(THETA, 1, accumulation=3) == pytest.approx(0.6)


def test_retrogression_counts_the_gpus_beyond_two():
    """Eq. 9: both placements have parameters of their own."""
    assert THETA.sync_seconds(2, multi_node=False) == 0.2
    assert THETA.sync_seconds(4, multi_node=False) == pytest.approx(0.26)
    assert THETA.sync_seconds(4, multi_node=True) == pytest.approx(0.6)


@pytest.mark.parametrize(("gamma", "last"), [(1.0, 0.4), (2.0, np.hypot(0.2, 0.2)), (10.0, 0.2 * 2**0.1)])
def test_gamma_decides_the_overlap(gamma, last):
    """Eq. 10: gamma 1 adds pass and synchronisation; a large gamma leaves the longer of both."""
    theta = THETA._replace(gamma=gamma)
    assert seconds(theta, 2) == pytest.approx(last)
    assert seconds(theta, 2, accumulation=3) == pytest.approx(0.4 + last)


def test_short_iterations_do_not_underflow():
    """A microsecond to the power of ten is still no zero."""
    theta = THETA.scaled(1e-40)._replace(gamma=10.0)
    assert seconds(theta, 4) == pytest.approx(1e-40 * seconds(THETA._replace(gamma=10.0), 4))


@given(PARAMETERS, st.lists(CONFIGURATIONS, min_size=1, max_size=9))
def test_arrays_give_the_same_seconds(theta, configurations):
    """The vectorised form agrees with the scalar one."""
    gpus, per_gpu, accumulation, multi_node = (np.array(column) for column in zip(*configurations, strict=True))
    found = theta.iteration_seconds_of(gpus, per_gpu, accumulation, multi_node)
    each = [seconds(theta, k, m, a, multi_node=several) for k, m, a, several in configurations]
    assert found == pytest.approx(each, rel=1e-12)


@given(PARAMETERS, CONFIGURATIONS, st.floats(1e-3, 1e3))
def test_seconds_are_homogeneous(theta, configuration, factor):
    """Parameters in another unit of time give iterations in that unit."""
    gpus, per_gpu, accumulation, multi_node = configuration
    alone = seconds(theta, gpus, per_gpu, accumulation, multi_node=multi_node)
    assert seconds(theta.scaled(factor), gpus, per_gpu, accumulation, multi_node=multi_node) == pytest.approx(
        factor * alone
    )
