"""Reloads of the configuration, and configurations that cannot be used."""

import os
import signal
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from metasched.configuration.config import load
from metasched.core.policy import Policy, Registry
from metasched.daemon import process
from metasched.daemon.background_solver import NotPortableError
from metasched.daemon.process import Daemon, PolicyStartError, ReloadRequests, make_policy


class Toy(Policy):
    name = "toy"

    def decide(self, snapshot, state):
        raise NotImplementedError


class Broken(Toy):
    name = "broken"

    def __init__(self, parameters=None):
        raise ZeroDivisionError("no profile")


def local():
    class Local(Toy):
        name = "local"
        solves_in_background = True

    return Local


@pytest.fixture
def registry():
    made = Registry()
    for kind in (Toy, Broken, local()):
        made.register(kind)
    return made


@pytest.fixture
def write(tmp_path):
    def write(policy="toy", more=""):
        path = tmp_path / "metasched.toml"
        path.write_text(f'[paths]\nstate = "/state"\nshared = "/shared"\n[policy]\nname = "{policy}"\n{more}')
        return path

    return write


@pytest.mark.parametrize(
    ("policy", "error", "said"),
    [("broken", PolicyStartError, "'broken'.*no profile"), ("local", NotPortableError, "'local'.*top of a module")],
)
def test_an_unusable_policy_is_an_error_at_the_start(registry, write, policy, error, said):
    """The policy's own code raises, or the policy cannot be sent to the background process."""
    with pytest.raises(error, match=said):
        make_policy(load(write(policy), registry), registry)


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (("toy", "[schedule]\nround_seconds = 7"), ""),
        (("broken",), "no profile"),
        (("local",), "top of a module"),
        (("toy", "[slurm]\ntimeout_seconds = 3"), "[slurm] timeout_seconds: 15.0 -> 3.0"),
        (("toy", '[slurm]\nclient = "cli"'), "[slurm] client: auto -> cli"),
        (("gone",), "no policy is named 'gone'"),
    ],
)
def test_a_reload_is_applied_whole_or_refused_with_the_reason(registry, write, monkeypatch, change, refused):
    """The old configuration stays in force where a key needs a restart, or the new one cannot be used."""
    monkeypatch.setattr(process, "configure_logs", lambda _: None)
    path, done = write(), []
    controller = SimpleNamespace(reconfigure=lambda config, policy: done.append(policy))
    copier, store = SimpleNamespace(every=0.0), SimpleNamespace()
    made = Daemon(path, load(path, registry), registry, lambda *_: controller, Toy(), store, copier, None)
    made._controller = controller
    write(*change)
    with capture_logs() as logs:
        made._reload_config()
    assert bool(done) is not bool(refused)
    assert [entry["event"] for entry in logs] == ["reload_refused" if refused else "reloaded"]
    assert refused in str(logs[0])


def test_a_reload_may_be_asked_for_before_the_daemon_polls():
    """While it stands by or waits for Slurm: SIGHUP does not end it, and is followed once."""
    before = signal.getsignal(signal.SIGHUP)
    try:
        reloads = ReloadRequests()
        assert not reloads.take()
        os.kill(os.getpid(), signal.SIGHUP)
        assert [reloads.take(), reloads.take()] == [True, False]
    finally:
        signal.signal(signal.SIGHUP, before)
