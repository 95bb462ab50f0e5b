"""Estimates of the gradient noise, compared with their closed forms on a quadratic loss of known covariance.

The loss of a sample x is |w - x|^2 / 2, so its gradient is w - x: the mean gradient is w, and the covariance of the
gradients of single samples that of x, which is diagonal here.
"""

import math

import pytest
import torch

from trainer_shim.adaptive_batch.gradient_noise import GradientNoise, LocalSums, _share_of, unmeasurable
from trainer_shim.adaptive_batch.preconditioner import Preconditioner
from trainer_shim.batch import plan_batch
from trainer_shim.data.plan_switch import PlanSwitch
from trainer_shim.data.sample_order import micro_batches

SIZE = 3000  # elements of the gradient: many make the estimates of few steps precise
REPEATS = 40
SIGNAL = torch.linspace(0.5, 1.5, SIZE, dtype=torch.float64)
DEVIATION = torch.linspace(1.0, 3.0, SIZE, dtype=torch.float64)

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.1, amsgrad=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1),
    "centered": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, centered=True),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small tensors, for which threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def divisor(name, optimizer, parameter):
    """The divisor of the optimizer's step, from its state, written down anew."""
    state = optimizer.state[parameter]
    if name == "sgd":
        return torch.ones(SIZE, dtype=torch.float64)
    if name in {"adam", "adamw", "amsgrad"}:
        square = state["max_exp_avg_sq" if name == "amsgrad" else "exp_avg_sq"]
        return (square / (1 - 0.999 ** state["step"].item())).sqrt() + 1e-8
    if name == "adagrad":
        return state["sum"].sqrt() + 1e-10
    mean = state["grad_avg"] if name == "centered" else 0.0
    return (state["square_avg"] - mean**2).sqrt() + 1e-8


class Rank:
    """One rank's weight, optimizer and measurement; the weight stays where the signal is known."""

    def __init__(self, make, *, rank=0, ranks=1, every=1):
        self.weight = torch.nn.Parameter(SIGNAL.clone())
        self.optimizer = make([self.weight])
        for scale in (1.0, -0.4):  # a state, as after some steps
            self.weight.grad = scale * torch.linspace(2.0, 5.0, SIZE, dtype=torch.float64)
            self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            self.weight.copy_(SIGNAL)
        self.noise = GradientNoise([self.optimizer], rank=rank, ranks=ranks, every=every)


def train_step(ranks, plan, step, generator, *, loss_scale=1.0, scaler=None):
    """The sums over all ranks that one step gives, whose gradients are summed over the ranks as DDP does."""
    samples = torch.randn(plan.global_batch, SIZE, dtype=torch.float64, generator=generator) * DEVIATION
    for number, rank in enumerate(ranks):
        for micro in micro_batches(torch.arange(plan.global_batch), 0, PlanSwitch(plan), number):
            rank.noise.begin_pass(step, micro)
            loss = (rank.weight - samples[micro.indices]).square().sum(dim=1).mean() / 2 * micro.weight * loss_scale
            (loss if scaler is None else loss * scaler).backward()
            if not micro.last:
                rank.noise.end_pass(scaler)
    mean = sum(rank.weight.grad for rank in ranks) / len(ranks)
    found = []
    for rank in ranks:
        rank.weight.grad.copy_(mean)
        rank.noise.end_pass(scaler)
        found.append(rank.noise.finish_step(step))
        rank.weight.grad = None
    return None if found[0] is None else LocalSums(*map(sum, zip(*found, strict=True)))


def estimates(make, size, batch, max_per_gpu=None, repeats=REPEATS, **options):
    """The measurements of many steps as a tensor with the columns |Pg|^2 and tr(P Sigma P^T), and the first rank."""
    plan = plan_batch(batch, size, max_per_gpu)
    ranks = [Rank(make, rank=rank, ranks=size) for rank in range(size)]
    generator = torch.Generator().manual_seed(11)
    found = [train_step(ranks, plan, step, generator, **options) for step in range(repeats)]
    return torch.tensor([each.measurement(batch) for each in found if not each.invalid]), ranks[0]


def assert_expected(found, square, variance):
    """The means of the estimates are within four standard errors of the closed forms, which are within 8 %."""
    expected = torch.tensor([square, variance], dtype=torch.float64)
    error = found.std(dim=0) / math.sqrt(len(found))
    assert (error / expected < 0.02).all()  # the test could see an error of 8 %
    assert ((found.mean(dim=0) - expected).abs() < 4 * error).all(), (found.mean(dim=0), expected, error)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    ("size", "max_per_gpu"), [(4, None), (1, 4), (1, None)], ids=["ranks", "passes", "differences"]
)
def test_closed_form(name, size, max_per_gpu):
    """Each estimator finds the preconditioned signal and variance of each optimizer, within the standard error."""
    found, rank = estimates(OPTIMIZERS[name], size, 16, max_per_gpu)
    scale = divisor(name, rank.optimizer, rank.weight)
    assert_expected(found, (SIGNAL / scale).square().sum().item(), (DEVIATION / scale).square().sum().item())


@pytest.mark.parametrize(
    ("size", "batch", "max_per_gpu"),
    [(8, 8, None), (2, 8, 2), (1, 8, 1), (4, 8, 1), (3, 8, None), (3, 11, 3), (2, 7, 2), (3, 4, 1)],
)
def test_every_split_has_the_same_expectation(size, batch, max_per_gpu):
    """One gradient of each sample on eight ranks, on two in four passes, on one in eight; and uneven micro-batches."""
    found, _ = estimates(OPTIMIZERS["sgd"], size, batch, max_per_gpu)
    assert_expected(found, SIGNAL.square().sum().item(), DEVIATION.square().sum().item())


def test_a_step_of_another_size():
    """The differenced estimator compares steps of different sizes, such as the last one of an epoch."""
    rank = Rank(OPTIMIZERS["sgd"])
    generator = torch.Generator().manual_seed(3)
    found = []
    for step in range(2 * REPEATS):
        batch = (16, 5)[step % 2]
        sums = train_step([rank], plan_batch(batch, 1), step, generator)
        if not sums.invalid:
            found.append(sums.measurement(batch))
    assert_expected(torch.tensor(found), SIGNAL.square().sum().item(), DEVIATION.square().sum().item())


@pytest.mark.parametrize(("size", "max_per_gpu"), [(3, 2), (1, None)])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_gradient_scaler_changes_nothing(name, size, max_per_gpu):
    """The estimates with a GradScaler are those without one."""
    plain, _ = estimates(OPTIMIZERS[name], size, 16, max_per_gpu, repeats=5)
    scaled, _ = estimates(OPTIMIZERS[name], size, 16, max_per_gpu, repeats=5, scaler=torch.tensor(1024.0))
    torch.testing.assert_close(scaled, plain)


@pytest.mark.parametrize(("size", "max_per_gpu"), [(2, 4), (1, None)])
def test_the_scale_of_the_loss_leaves_the_noise_scale(size, max_per_gpu):
    """A loss that is 100 times as large has the same noise scale, although the signal is 10,000 times as large."""
    plain, _ = estimates(OPTIMIZERS["sgd"], size, 16, max_per_gpu, repeats=20)
    larger, _ = estimates(OPTIMIZERS["sgd"], size, 16, max_per_gpu, repeats=20, loss_scale=100.0)
    torch.testing.assert_close(larger, plain * 1e4)


def test_an_overflow_is_no_measurement():
    """A step whose gradients are not finite has no measurement, and the next one is measured again."""
    ranks = [Rank(OPTIMIZERS["sgd"], rank=rank, ranks=2) for rank in range(2)]
    generator = torch.Generator().manual_seed(3)
    overflown = train_step(ranks, plan_batch(8, 2), 0, generator, scaler=torch.tensor(math.inf))
    assert overflown.measurement(8) is None
    assert train_step(ranks, plan_batch(8, 2), 1, generator).measurement(8) is not None


def test_some_steps_are_measured():
    """Of four steps one is measured; a copy of the gradients exists from the step before it on, and not longer."""
    rank = Rank(OPTIMIZERS["sgd"], every=4)
    generator = torch.Generator().manual_seed(3)
    measured, copies = [], []
    for step in range(8):
        measured.append(train_step([rank], plan_batch(4, 1), step, generator) is not None)
        copies.append(rank.noise._earlier is not None)
    assert measured == [False, False, False, True] * 2
    assert copies == [False, False, True, False] * 2


def test_no_copy_with_several_micro_batches():
    """Where a step has several gradients, none is copied."""
    rank = Rank(OPTIMIZERS["sgd"])
    generator = torch.Generator().manual_seed(3)
    for step in range(3):
        train_step([rank], plan_batch(4, 1, 2), step, generator)
        assert rank.noise._earlier is None


@pytest.mark.parametrize(("sizes", "ranks"), [([5, 5, 10], 2), ([100, 1, 1], 3), ([7], 4), ([], 2)])
def test_each_parameter_is_in_one_share(sizes, ranks):
    """The shares of the ranks are all parameters, none of them twice."""
    shares = [_share_of(sizes, rank, ranks) for rank in range(ranks)]
    assert sorted(number for share in shares for number in share) == list(range(len(sizes)))


def test_shares_are_of_similar_size():
    """Two small parameters are as much as a large one."""
    assert [_share_of([5, 5, 10], rank, 2) for rank in range(2)] == [[0, 1], [2]]


def test_groups_with_different_learning_rates():
    """The noise is that of a whole step: a group with a tenth of the learning rate has a tenth of the weight."""

    def make(_):
        return torch.optim.SGD([{"params": [first], "lr": 1.0}, {"params": [second], "lr": 0.1}])

    first, second = (torch.nn.Parameter(torch.full((4,), value, dtype=torch.float64)) for value in (1.0, 2.0))
    noise = GradientNoise([make(None)], every=1)
    for step in range(2):
        (micro,) = micro_batches(torch.arange(3), 0, PlanSwitch(plan_batch(3, 1)), 0)
        noise.begin_pass(step, micro)
        ((first**2).sum() / 2 + (second**2).sum() / 2).backward()
        noise.end_pass(None)
        found = noise.finish_step(step)
        first.grad = second.grad = None
    assert found.measurement(3) == pytest.approx((4 * 1.0 + 0.01 * 4 * 4.0, 0.0))


def test_two_backward_passes_of_one_parameter():
    """A parameter with two gradients of one micro-batch (a shared network of a GAN) is no measurement."""
    rank = Rank(OPTIMIZERS["sgd"], ranks=2)
    plan = plan_batch(4, 2)
    for micro in micro_batches(torch.arange(4), 0, PlanSwitch(plan), 0):
        for _ in range(2):
            rank.noise.begin_pass(0, micro)
            rank.weight.sum().backward()
            rank.noise.end_pass(None)
    assert rank.noise.finish_step(0).invalid


def test_a_step_without_gradients():
    """A step whose script has called no backward pass of the shim is no measurement, and no earlier one again."""
    rank = Rank(OPTIMIZERS["sgd"])
    generator = torch.Generator().manual_seed(3)
    assert not train_step([rank], plan_batch(4, 1, 2), 0, generator).invalid
    assert rank.noise.finish_step(1).invalid


def test_adaptive_optimizers_before_their_first_step():
    """Without the optimizer's averages there is no preconditioner, and no measurement."""
    weight = torch.nn.Parameter(SIGNAL.clone())
    noise = GradientNoise([torch.optim.Adam([weight])], ranks=2, every=1)
    for micro in micro_batches(torch.arange(4), 0, PlanSwitch(plan_batch(4, 2)), 0):
        noise.begin_pass(0, micro)
        weight.sum().backward()
        noise.end_pass(None)
    assert noise.finish_step(0).invalid


@pytest.mark.parametrize("name", ["adam", "adagrad", "rmsprop"])
def test_an_element_without_an_earlier_gradient(name):
    """The first gradient of an element, such as a rare word's, is not divided by the epsilon alone."""
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = OPTIMIZERS[name]([weight])
    weight.grad = torch.tensor([2.0, 0.0], dtype=torch.float64)
    optimizer.step()
    preconditioner = Preconditioner(optimizer, optimizer.param_groups[0])
    (whole,), factor = preconditioner.apply([weight], [torch.ones(2, dtype=torch.float64)])
    assert 0 < (whole[0] * factor).item() < 10
    assert whole[1].item() == 0


@pytest.mark.parametrize("max_per_gpu", [None, 2], ids=["compared", "passes"])
def test_sparse_gradients_are_no_measurement(max_per_gpu):
    """Without them the noise would be that of some of the parameters."""
    table = torch.nn.Embedding(8, 3, sparse=True)
    weight = torch.nn.Parameter(torch.ones(3))
    noise = GradientNoise([torch.optim.SGD([*table.parameters(), weight], lr=0.1)], every=1)
    for step in range(2):
        for micro in micro_batches(torch.arange(4), 0, PlanSwitch(plan_batch(4, 1, max_per_gpu)), 0):
            noise.begin_pass(step, micro)
            (table(torch.arange(micro.samples)) * weight).sum().backward()
            noise.end_pass(None)
        found = noise.finish_step(step)
        table.weight.grad = weight.grad = None
    assert found.invalid == 1


def test_steps_that_are_counted_on_a_gpu():
    """They correct a single parameter of any shape; torch's device without memory stands for the GPU."""
    for shape in [(), (3, 5)]:
        weight = torch.nn.Parameter(torch.empty(shape, device="meta"))
        optimizer = torch.optim.Adam([weight])
        optimizer.state[weight] = {"step": torch.empty((), device="meta"), "exp_avg_sq": torch.empty_like(weight)}
        preconditioner = Preconditioner(optimizer, optimizer.param_groups[0])
        (whole,), _ = preconditioner.apply([weight], [torch.empty_like(weight)])
        assert whole.shape == shape


class Several:
    """A net of parameters of several shapes, dtypes and groups, whose gradients are drawn at random."""

    def __init__(self, make, batch_bytes, ranks):
        generator = torch.Generator().manual_seed(7)
        shapes = [((3, 5), torch.float32), ((40,), torch.float32), ((), torch.float32), ((2, 3, 4), torch.bfloat16)]
        self.parameters = [
            torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape, dtype in shapes * 2
        ]
        half = len(shapes)
        self.optimizer = make([{"params": self.parameters[:half]}, {"params": self.parameters[half:], "lr": 0.01}])
        self.noise = GradientNoise([self.optimizer], ranks=ranks, every=1, batch_bytes=batch_bytes)
        self.generator = generator

    def measurements(self, plan, scaler=None):
        """The sums of some steps; in the first one, some parameters have no gradient."""
        found = []
        for step in range(3):
            trained = self.parameters[2:] if step == 0 else self.parameters
            for micro in micro_batches(torch.arange(plan.global_batch), 0, PlanSwitch(plan), 0):
                self.noise.begin_pass(step, micro)
                factors = [torch.randn(each.shape, generator=self.generator) for each in trained]
                loss = sum((each * factor).sum() for each, factor in zip(trained, factors, strict=True)) * micro.weight
                (loss if scaler is None else loss * scaler).backward()
                self.noise.end_pass(scaler)
            found.append(self.noise.finish_step(step))
            for each in self.parameters:
                each.grad = each.grad if scaler is None or each.grad is None else each.grad / scaler
            self.optimizer.step()
            self.optimizer.zero_grad()
        return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("ranks", "max_per_gpu"), [(1, None), (1, 2), (2, None)], ids=["compared", "passes", "ranks"])
def test_joined_gradients_have_the_measurement_of_single_ones(name, ranks, max_per_gpu):
    """Gradients measured as few tensors, as on a GPU, or some at a time, give what those of each parameter give."""
    plan = plan_batch(4, ranks, max_per_gpu)
    scaler = torch.tensor(8.0)
    single, some, joined = (
        Several(OPTIMIZERS[name], limit, ranks).measurements(plan, scaler) for limit in (0, 150, 2**20)
    )
    assert LocalSums(*single[-1].tolist()).invalid == 0
    torch.testing.assert_close(joined, single, rtol=1e-5, atol=0)
    torch.testing.assert_close(some, single, rtol=1e-5, atol=0)


def test_norms_of_half_precision_gradients():
    """The norm of a float16 gradient is accumulated in float32: it may be more than a float16 holds."""
    weights = [torch.nn.Parameter(torch.zeros(10_000, dtype=torch.float16)) for _ in range(2)]
    noise = GradientNoise([torch.optim.SGD(weights, lr=1.0)], ranks=2, every=1, batch_bytes=2**20)
    for micro in micro_batches(torch.arange(4), 0, PlanSwitch(plan_batch(4, 2)), 0):
        noise.begin_pass(0, micro)
        sum((each * 1000).sum() for each in weights).backward()
        noise.end_pass(None)
    assert noise.finish_step(0).weighted_squares == pytest.approx(0.5 * 2 * 10_000 * 1000**2, rel=1e-3)


@pytest.mark.parametrize(("max_per_gpu", "hooked"), [(None, [False] * 4), (2, [False, False, True, False])])
def test_hooks_only_where_passes_are_measured(max_per_gpu, hooked):
    """The parameters have hooks in the passes of a measured step alone, and none where steps are compared."""
    rank = Rank(OPTIMIZERS["sgd"], every=3)
    found = []
    for step in range(4):
        for micro in micro_batches(torch.arange(4), 0, PlanSwitch(plan_batch(4, 1, max_per_gpu)), 0):
            rank.noise.begin_pass(step, micro)
            in_pass = bool(rank.weight._backward_hooks)
            rank.weight.sum().backward()
            rank.noise.end_pass(None)
            assert not rank.weight._backward_hooks
        found.append(in_pass)
        rank.noise.finish_step(step)
    assert found == hooked


def test_a_pass_that_fails_leaves_nothing():
    """Gradients of a backward pass that failed do not count in the next one, which the script begins anew."""
    rank = Rank(OPTIMIZERS["sgd"], ranks=2)
    (micro,) = micro_batches(torch.arange(4), 0, PlanSwitch(plan_batch(4, 2)), 0)
    rank.noise.begin_pass(0, micro)
    rank.weight.sum().backward()
    rank.noise.begin_pass(1, micro)
    rank.weight.grad = None
    rank.weight.sum().backward()
    rank.noise.end_pass(None)
    found = rank.noise.finish_step(1)
    assert (found.invalid, found.weighted_squares) == (0.0, pytest.approx(0.5 * SIZE))


def test_what_cannot_be_measured_is_named():
    """Each reason names its fix."""
    weight = torch.nn.Parameter(torch.ones(3))
    known = {"ranks": 2, "exchanged": True, "sharded": False}
    assert unmeasurable([torch.optim.SGD([weight], lr=1)], **known) is None
    assert "FSDP" in unmeasurable([torch.optim.SGD([weight], lr=1)], **known | {"sharded": True})
    assert "ctx.wrap" in unmeasurable([torch.optim.SGD([weight], lr=1)], **known | {"exchanged": False})
    assert "ctx.track" in unmeasurable([], **known)
    assert "Adadelta is not known: use one of Adagrad, Adam" in unmeasurable([torch.optim.Adadelta([weight])], **known)
