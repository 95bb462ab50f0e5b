"""Scripts of the shapes that people have, plain and adopted; `python -m contrib.benchmarks.adoption` runs all."""

import pytest

from contrib.benchmarks import adoption
from tests.fork_server import start_process

pytestmark = pytest.mark.shim

QUICK = ("gan", "mixup_ema", "step_counted_lm")


@pytest.fixture
def start_forked(server):
    """A function that starts a rank by a fork of the server."""
    return lambda argv, environ, output, directory: start_process(server, argv, environ, output, directory)


@pytest.mark.parametrize("name", QUICK)
def test_an_adopted_script_resumes_at_another_size(name, start_forked, tmp_path):
    """The adopted script, stopped at 2 ranks, at 1 and resumed at 2, has the parameters of its undisturbed run."""
    outcome = adoption.measure(name, tmp_path, start_forked, same_size=False)
    assert outcome.resized <= adoption.TOLERANCE
    assert len(outcome.exit_seconds) == 2


@pytest.mark.parametrize("name", QUICK)
def test_a_plain_script_trains_to_its_end(name, start_forked, tmp_path):
    """The plain script runs without the shim, so that its difference to the adopted one is the shim alone."""
    adoption.run_plain(name, tmp_path, start_forked)
    assert "trainer_shim" not in (adoption.SCRIPTS / name / "plain.py").read_text()


@pytest.mark.parametrize("name", adoption.NAMES)
def test_adopting_takes_few_lines(name):
    """Fewer than 25 lines of code are written to adopt a script, and more are deleted."""
    scripts = adoption.SCRIPTS / name
    written, deleted = adoption.changed_lines(scripts / "plain.py", scripts / "adopted.py")
    assert 0 < written < min(25, deleted)
