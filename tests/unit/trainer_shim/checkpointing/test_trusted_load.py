"""Checkpoints that other users could have written run no code here."""

import os
import re
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trainer_shim.checkpointing import trusted_load
from trainer_shim.checkpointing.formats.script_checkpoints import Progress, ScriptCheckpoints, States
from trainer_shim.checkpointing.trusted_load import CONSENT, load_states, unsafe_classes, why_untrusted
from trainer_shim.errors import CheckpointError
from trainer_shim.rehearse.state import load as load_for_rehearsal

OTHER = 12345  # neither this user nor root


class Malicious:
    """Its pickle makes a file when it is loaded."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


class Meter:
    """A harmless class of a script."""

    def __init__(self, value):
        self.value = value


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A directory that this user owns, below directories that nobody else may write."""
    made = tmp_path / "checkpoints"
    made.mkdir(mode=0o755)
    made.chmod(0o755)
    monkeypatch.setattr(trusted_load, "_is_private_group", lambda _: False)
    return made


@pytest.fixture
def shared(directory):
    """The directory as projects share it: setgid, writable by the group."""
    directory.chmod(0o2775)
    return directory


def saved(directory, state):
    path = directory / "states.pt"
    torch.save({"state": state}, path)
    path.chmod(0o644)
    return path


def test_a_malicious_pickle_in_a_shared_directory_is_refused_and_runs_nothing(shared, tmp_path):
    """The error names the directory, the group's access and the option; with the option it is the user's own risk."""
    path = saved(shared, Malicious(tmp_path / "pwned"))
    with pytest.raises(CheckpointError, match=f"may write to {shared}.*chmod go-w.*{CONSENT}"):
        load_states(path)
    assert not (tmp_path / "pwned").exists()
    load_states(path, trusted=True)
    assert (tmp_path / "pwned").exists()


def test_the_shims_own_load_refuses_it_as_well(shared, tmp_path):
    """`ScriptCheckpoints.load`, the rehearsal and the check of sharded states say the same."""
    store = ScriptCheckpoints(shared)
    store.save(States({"meter": Malicious(tmp_path / "pwned")}), 1, Progress(step=1), {}, lambda: None)
    checkpoint = store.latest()
    for load in (store.load, store.require_trusted_shards, lambda found: load_for_rehearsal(found.data)):
        with pytest.raises(CheckpointError, match=CONSENT):
            load(checkpoint if load != store.require_trusted_shards else None)
    assert not (tmp_path / "pwned").exists()
    ScriptCheckpoints(shared, trusted=True).require_trusted_shards(None)


@pytest.mark.skipif(not hasattr(torch.serialization, "get_unsafe_globals_in_checkpoint"), reason="torch before 2.6")
def test_a_checkpoint_that_a_restart_would_refuse_is_told_when_it_is_written(shared, caplog):
    """The first save warns, with the class and the option, and not only the restart days later."""
    store = ScriptCheckpoints(shared)
    for step in (1, 2):
        store.save(States({"meter": Meter(3)}), 1, Progress(step=step), {}, lambda: None)
    (record,) = caplog.records
    assert "Meter" in record.getMessage()
    assert CONSENT in record.getMessage()
    assert unsafe_classes(saved(shared, [1])) == []


def test_usual_states_load_from_any_directory(shared):
    """States of optimizers, schedulers, scalers and counters need neither consent nor a private directory."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    schedules = (
        torch.optim.lr_scheduler.OneCycleLR(torch.optim.SGD(model.parameters(), 0.1), 0.1, total_steps=9),
        torch.optim.lr_scheduler.MultiStepLR(torch.optim.SGD(model.parameters(), 0.1), [2, 4]),
        torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD(model.parameters(), 0.1), lambda _: 1.0),
        torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD(model.parameters(), 0.1)),
    )
    generator = np.random.default_rng(1)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedules": [schedule.state_dict() for schedule in schedules],
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
        "losses": [np.float64(0.5), np.float32(2), np.int64(3)],
        "counts": [Counter("aab"), OrderedDict(a=1), defaultdict(list), {1, 2}, (1, None, b"x", 2j)],
        "array": np.arange(3),
        "generator": generator.bit_generator.state,
        "rng": torch.get_rng_state(),
    }
    found = load_states(saved(shared, state))["state"]
    assert found["losses"] == state["losses"]
    assert found["counts"] == state["counts"]
    assert (found["array"] == state["array"]).all()
    assert torch.equal(found["model"]["weight"], model.weight)


def test_a_scripts_own_classes_load_from_a_directory_of_this_user_alone(directory):
    """Nobody else could have written them."""
    assert load_states(saved(directory, Meter(3)))["state"].value == 3
    assert load_for_rehearsal(directory / "states.pt")["state"].value == 3


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (0o2775, "the group .* may write to .*checkpoints$"),
        (0o777, "every user may write to .*checkpoints$"),
        (0o1777, None),
        (0o755, None),
    ],
)
def test_write_access_of_others_to_the_directory(directory, mode, said):
    """Only a sticky directory may be writable by others: there they can replace their own files alone."""
    path = saved(directory, 1)
    directory.chmod(mode)
    found = why_untrusted(path)
    assert found is None if said is None else re.search(said, found)


def test_write_access_of_others_to_the_file_or_to_a_directory_above(directory):
    """Each is enough to put something else there."""
    path = saved(directory, 1)
    path.chmod(0o664)
    assert str(path) in why_untrusted(path)
    path.chmod(0o644)
    (directory / "deep").mkdir(mode=0o700)
    deep = saved(directory / "deep", 1)
    assert why_untrusted(deep) is None
    directory.chmod(0o777)
    assert f"write to {directory}" in why_untrusted(deep)
    link = directory.parent / "link"
    link.symlink_to(directory / "deep")
    assert f"write to {directory}" in why_untrusted(link / "states.pt")


def test_the_users_own_group_counts_as_the_user(directory, monkeypatch):
    """Distributions give each user a group of one, and a umask of 002."""
    path = saved(directory, 1)
    directory.chmod(0o775)
    monkeypatch.undo()
    group = SimpleNamespace(gr_name="ann", gr_mem=["ann"])
    monkeypatch.setattr(
        trusted_load.pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="ann", pw_gid=path.stat().st_gid)
    )
    monkeypatch.setattr(trusted_load.grp, "getgrgid", lambda _: group)
    assert why_untrusted(path) is None
    group.gr_mem = ["ann", "bob"]
    assert f"the group ann may write to {directory}" in why_untrusted(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_file_of_another_user_is_not_trusted(directory):
    """Nor is a directory of another user, above it or itself."""
    path = saved(directory, 1)
    os.chown(path, OTHER, -1)
    assert why_untrusted(path) == f"{path} belongs to user {OTHER}"
    os.chown(path, 0, -1)
    os.chown(directory, OTHER, -1)
    assert why_untrusted(path) == f"{directory} belongs to user {OTHER}"
