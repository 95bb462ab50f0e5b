import pytest

from metasched.core.declared_work import WorkContradiction, work_contradiction
from tests.builders import job


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"total_steps": None, "progress_steps": 1e6}, None),
        ({"total_steps": 100.0, "progress_steps": 100.0}, None),
        ({"total_steps": 2.0, "progress_steps": 3.0}, WorkContradiction.PASSED),
        ({"total_steps": 2.0, "progress_steps": 1.0, "steps_per_second": 0.1, "ran_seconds": 500.0}, None),
        (
            {"total_steps": 2.0, "progress_steps": 1.0, "steps_per_second": 0.1, "ran_seconds": 700.0},
            WorkContradiction.OVERDUE,
        ),
        (
            {"total_steps": 2.0, "steps_per_second": 1.0, "ran_seconds": 1.0, "expected_service": 100.0},
            WorkContradiction.HISTORY,
        ),
        ({"total_steps": 20.0, "steps_per_second": 1.0, "ran_seconds": 1.0, "expected_service": 100.0}, None),
    ],
)
def test_declared_steps_are_compared_with_what_is_known(facts, found):
    """Progress beyond them, time beyond them at the reported speed, and the service of earlier jobs contradict them."""
    assert work_contradiction(job(**facts)) is found
