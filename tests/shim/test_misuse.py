"""Wrong calls, other data, and a full disk, mostly in a single process."""

import re

import pytest

pytestmark = pytest.mark.shim

PRELUDE = """
import torch, trainer_shim
from trainer_shim import *
def refused(error, words, call):
    try:
        call()
    except error as caught:
        assert words in str(caught), caught
    else:
        raise SystemExit(f"not refused: {words}")
net, dataset = torch.nn.Linear(2, 1), torch.utils.data.TensorDataset(torch.randn(12, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
ctx = trainer_shim.init("checkpoints", checkpoint_every=0)
"""


@pytest.fixture
def run(run_code):
    """Run a script that begins with PRELUDE in one process; returns its exit code and its output."""

    def run_script(script, **variables):
        (code,), (output,) = run_code(PRELUDE + script, **variables)
        return code, output

    return run_script


def test_calls_in_a_wrong_order_are_refused(run):
    """Calls that make no sense are refused with the way to do it; then the training can still be run."""
    code, output = run("""
refused(UsageError, "come before ctx.epochs", lambda: next(ctx.epochs(1)))
refused(UsageError, "a dict has no state_dict", lambda: ctx.track(things={}))
refused(BatchError, "global_batch is 0", lambda: ctx.loader(dataset, global_batch=0))
assert torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options._timeout.days == 7
loader = ctx.loader(dataset, global_batch=4)
refused(UsageError, "once", lambda: ctx.loader(dataset, global_batch=4))
ctx.track(net=net)
refused(UsageError, "in one call", lambda: ctx.track(net=net))
refused(UsageError, "inside ctx.epochs", lambda: next(iter(loader)))
refused(UsageError, "belong in", lambda: ctx.step(optimizer))
for epoch in ctx.epochs(1):
    for (x,) in loader:
        ctx.backward(net(x).mean())
        assert ctx.boundary and ctx.step(optimizer)
        refused(UsageError, "once for a batch", lambda: ctx.step(optimizer))
assert ctx.step_count == 3
""")
    assert code == 0, output


def test_a_loop_without_step_is_refused(run):
    """A loop that never calls step() is told so, rather than training nothing."""
    code, output = run("""
loader = ctx.loader(dataset, global_batch=4)
ctx.track(net=net)
def loop():
    for epoch in ctx.epochs(1):
        for (x,) in loader:
            ctx.backward(net(x).mean())
refused(UsageError, "call it for every batch", loop)
""")
    assert code == 0, output


def test_another_order_and_other_names_are_refused(run):
    """A checkpoint is not continued with data in another order, nor with other objects."""
    train = """
loader = ctx.loader(dataset, global_batch=4, seed=1)
ctx.track(net=net)
for epoch in ctx.epochs(1):
    for (x,) in loader:
        ctx.backward(net(x).mean())
        ctx.step(optimizer)
"""
    code, output = run(train)
    assert code == 0, output
    code, output = run("""
refused(CheckpointError, "'seed': 1", lambda: ctx.loader(dataset, global_batch=4, seed=2))
refused(CheckpointError, "holds ['net']", lambda: ctx.track(net=net, more=net))
""")
    assert code == 0, output


def test_another_global_batch_needs_consent(run):
    """A checkpoint is continued with another global batch only where the script says which one it changes."""
    train = """
loader = ctx.loader(dataset, global_batch=4)
ctx.track(net=net)
for epoch in ctx.epochs(1):
    for (x,) in loader:
        ctx.backward(net(x).mean())
        ctx.step(optimizer)
"""
    code, output = run(train)
    assert code == 0, output
    code, output = run("""
refused(CheckpointError, "made with global_batch 4 on 1 ranks", lambda: ctx.loader(dataset, global_batch=6))
ctx.loader(dataset, global_batch=6, batch_change=4)
""")
    assert code == 0, output
    assert "the global batch changes from 4 to 6" in output


def test_training_continues_on_a_full_disk(run):
    """A checkpoint that cannot be written is an error in the log; training goes on, and a stop asks to be run again."""
    code, output = run(
        """
import os, signal
def full(*_):
    raise OSError(28, "No space left on device")
ctx._checkpointing.checkpoints.save = full
loader = ctx.loader(dataset, global_batch=4)
ctx.track(net=net)
for epoch in ctx.epochs(9):
    for (x,) in loader:
        ctx.backward(net(x).mean())
        ctx.step(optimizer)
        if ctx.step_count == 5:
            os.kill(os.getpid(), signal.SIGUSR2)
""",
        METASCHED_EXIT_CODE="85",
    )
    assert code == 85, output
    assert re.search(r"no checkpoint at step [1-6], the last one stays: \[Errno 28\]", output)
    assert "stopped after step 6 (signal), checkpointed: False" in output


def test_an_urgent_stop_saves_nothing_after_a_recent_checkpoint(run):
    """An urgent stop makes no checkpoint where there is a young one."""
    code, output = run(
        """
import os, signal, trainer_shim.preemption.stop_requests
trainer_shim.preemption.stop_requests.URGENT_SIGTERM_SECONDS = 0
loader = ctx.loader(dataset, global_batch=4)
ctx.track(net=net)
for epoch in ctx.epochs(9):
    for (x,) in loader:
        ctx._checkpointing.saver.settle()
        ctx.backward(net(x).mean())
        ctx.step(optimizer)
        if ctx.step_count == 5:
            os.kill(os.getpid(), signal.SIGUSR2)
            os.kill(os.getpid(), signal.SIGTERM)
""",
        METASCHED_EXIT_CODE="85",
    )
    assert code == 85, output
    assert "no checkpoint: SIGTERM came after the first signal" in output
    assert "stopped after step 6 (signal), checkpointed: False" in output


def test_poll_stops_before_the_first_epoch(run):
    """Work before the first epoch can be stopped; an evaluation outside of training just iterates."""
    train = """
import os, signal
loader = ctx.loader(dataset, global_batch=4)
ctx.track(net=net)
for epoch in ctx.epochs(1):
    for (x,) in loader:
        ctx.backward(net(x).mean())
        ctx.step(optimizer)
        ctx.poll()
os.kill(os.getpid(), signal.SIGUSR2)
assert list(ctx.evaluate(iter([1, 2]))) == [1, 2]
ctx.poll()
"""
    warm_up = """
import os, signal
assert list(ctx.evaluate([1, 2])) == [1, 2]
ctx.poll()
os.kill(os.getpid(), signal.SIGUSR2)
ctx.poll()
print("not reached")
"""
    for script, expected in [(warm_up, 85), (train, 0)]:
        code, output = run(script, METASCHED_EXIT_CODE="85")
        assert code == expected, output
        assert "not reached" not in output


def test_an_unreadable_fence_prevents_checkpoints(run):
    """While the fence cannot be read nothing is written, and training goes on."""
    code, output = run("""
import trainer_shim.session.trainer_session as trainer_session
def stale(_):
    raise OSError(116, "Stale file handle")
trainer_session.POLL_INTERVAL, trainer_session.highest_generation = 0, stale
loader = ctx.loader(dataset, global_batch=4)
ctx.track(net=net)
for epoch in ctx.epochs(2):
    for (x,) in loader:
        ctx.backward(net(x).mean())
        ctx.step(optimizer)
    if epoch == 1:
        trainer_session.highest_generation = lambda _: 1
""")
    assert code == 0, output
    assert output.count("the fence cannot be read") == 1
    assert re.search(r"no checkpoint at step [1-5], the last one stays: \[Errno 116\]", output)
    assert "finished after step 6" in output


def test_finish_ends_the_training_once(run, tmp_path):
    """finish() ends the training once, whether or not the script breaks out of its loops."""
    (tmp_path / "reports").mkdir()
    code, output = run(
        """
loader = ctx.loader(dataset, global_batch=4)
ctx.track(net=net)
with ctx:
    for epoch in ctx.epochs(9):
        for (x,) in loader:
            ctx.backward(net(x).mean())
            ctx.step(optimizer)
            if epoch == 1:
                break
        refused(UsageError, "belong in", lambda: ctx.step(optimizer))
        if epoch == 1:
            ctx.finish()
torch.distributed.destroy_process_group()
""",
        METASCHED_REPORTS=str(tmp_path / "reports" / "uid"),
    )
    assert code == 0, output
    assert "Traceback" not in output
    lines = (tmp_path / "reports" / "uid" / "incarnation-1.jsonl").read_text()
    assert lines.count('"end"') == 1
    assert '"step": 4' in lines.splitlines()[-1]


def test_the_clean_up_of_a_stopped_script_runs(run):
    """After a stop, the script's finally clauses and exit hooks run as ever, and its output is complete."""
    code, output = run("""
import atexit, os, signal
atexit.register(print, "hook", end="")
loader = ctx.loader(dataset, global_batch=4)
ctx.track(net=net)
try:
    for epoch in ctx.epochs(9):
        for (x,) in loader:
            ctx.backward(net(x).mean())
            ctx.step(optimizer)
            os.kill(os.getpid(), signal.SIGTERM)
finally:
    torch.distributed.destroy_process_group()
    print("finally")
""")
    assert code == 143
    assert "Traceback" not in output
    assert output.endswith("finally\nhook")


def test_an_incomplete_environment_is_refused(run, tmp_path):
    """Missing variables, or a checkpoint directory that cannot be written, is an error that names it at the start."""
    code, output = run("", RANK="0")
    assert code == 1
    assert "VariableError: WORLD_SIZE is not set" in output
    (tmp_path / "checkpoints").write_text("a file")
    code, output = run("")
    assert code == 1
    assert "CheckpointError: checkpoints: the checkpoint directory cannot be written" in output


def test_clearing_gradients_between_micro_batches_is_refused(run):
    """What `zero_grad()` at the top of the loop does where gradients are accumulated: refused; elsewhere nothing."""
    code, output = run("""
loader = ctx.loader(dataset, global_batch=4, max_per_gpu=2)
ctx.track(net=ctx.wrap(net))
def loop():
    for epoch in ctx.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            ctx.backward(net(x).mean())
            ctx.step(optimizer)
refused(UsageError, "leave zero_grad() out", loop)
assert ctx.step_count == 0
""")
    assert code == 0, output


def test_a_stop_ends_a_script_that_catches_the_exit(run):
    """A stop ends the script also where a bare `except` in its loop catches the SystemExit; no sample is lost."""
    train = """
import os, signal
loader = ctx.loader(dataset, global_batch=4)
ctx.track(net=net)
for epoch in ctx.epochs(3):
    try:
        for (x,) in loader:
            ctx.backward(net(x).mean())
            ctx.step(optimizer)
            if ctx.step_count == 4:
                os.kill(os.getpid(), signal.SIGUSR2)
    except:
        print("caught")
"""
    code, output = run(train, METASCHED_EXIT_CODE="85")
    assert code == 85, output
    assert output.count("caught") == output.count("stopped after step 5") == 1
    again = "\nrefused(UsageError, 'for the whole training', lambda: next(ctx.epochs(9)))\n"
    code, output = run(train.replace("== 4", "== 99") + again, METASCHED_EXIT_CODE="85")
    assert code == 0, output
    assert "finished after step 9" in output


@pytest.mark.parametrize(
    ("line", "instead", "words"),
    [
        ("import signal", "import signal; signal.signal(signal.SIGTERM, print)", "replaced the handler of SIGTERM"),
        ("ctx.wrap(net)", "net", "no model in ctx.track(...) exchanges gradients"),
        ("ctx.backward(net(x).mean())", "net(x).mean().backward()", "ctx.backward(loss) was not called"),
        ("if False:", "if ctx.step_count:", "ended before its epochs"),
    ],
    ids=["handler", "unwrapped", "backward", "unfinished"],
)
def test_a_likely_mistake_is_one_warning(run, line, instead, words):
    """A mistake that would go unnoticed is one warning, and the only one."""
    usual = """
import signal
loader = ctx.loader(dataset, global_batch=3, max_per_gpu=2)
ctx.track(net=ctx.wrap(net))
for epoch in ctx.epochs(2):
    for (x,) in loader:
        ctx.backward(net(x).mean())
        ctx.step(optimizer)
    if False:
        break
"""
    code, output = run(usual.replace(line, instead, 1))
    assert code == 0, output
    (said,) = [line for line in output.splitlines() if not re.match("trainer_shim: (generation|finished)", line)]
    assert words in said


def test_a_process_group_of_the_script_is_refused(run, tmp_path):
    """A process group of the script's own is refused, with the name of the call to remove."""
    code, output = run("""
torch.distributed.destroy_process_group()
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
refused(UsageError, "init_process_group", lambda: trainer_shim.init("other"))
""")
    assert code == 0, output
    assert not (tmp_path / "other").exists()


def test_data_that_differ_between_ranks_are_refused(workplace):
    """Ranks with data sets of their own are told so, all of them, where some would train on a part."""
    place = workplace()
    place.script = place.directory / "split.py"
    place.script.write_text(
        "import os, sys; os.chdir(sys.argv[1])"
        + PRELUDE
        + "part = torch.utils.data.Subset(dataset, range(0, 12 - ctx.rank))\nctx.loader(part, global_batch=4)\n"
    )
    trainers = place.launch(2)
    assert trainers.wait() == [1, 1]
    assert all("give every rank the whole data set" in trainers.output(rank) for rank in range(2))
    assert "'size': 11" in trainers.output(1)


def test_other_samples_are_refused(workplace):
    """A data set that is split anew on each rank, or at each start, is refused, and the differing samples are named."""
    place = workplace()
    place.script = place.directory / "random_split.py"
    place.script.write_text(
        "import os, sys; os.chdir(sys.argv[1])"
        + PRELUDE
        + """
torch.manual_seed(int(sys.argv[2]) + int(sys.argv[3]) * ctx.rank)
wide = torch.utils.data.TensorDataset(torch.randn(40, 50, generator=torch.Generator().manual_seed(1)))
part, _ = torch.utils.data.random_split(wide, [20, 20])
state = torch.get_rng_state()
loader = ctx.loader(part, global_batch=4, num_workers=1, check_samples=len(sys.argv) == 4)
assert torch.equal(state, torch.get_rng_state())
net = ctx.wrap(torch.nn.Linear(50, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
ctx.track(net=net)
for epoch in ctx.epochs(1):
    for (x,) in loader:
        ctx.backward(net(x).mean())
        ctx.step(optimizer)
"""
    )
    trainers = place.launch(2, 1, 1)
    assert trainers.wait() == [1, 1]
    assert all("rank 1 has other training samples than rank 0" in trainers.output(rank) for rank in range(2))
    assert "on this rank, sample" in trainers.output(1)
    trainers = place.launch(2, 1, 0)
    assert trainers.wait() == [0, 0], trainers.output()
    trainers = place.launch(1, 2, 0)
    assert trainers.wait() == [1]
    assert "was made with other training samples: sample" in trainers.output()
    assert place.launch(1, 2, 0, "unchecked").wait() == [0]
