"""What every executor promises: the numbers of one user after another, in float64 to rounding.

The functions here know nothing of federated learning: a least-squares fit by gradient descent, for
users with different amounts of data.
"""

import dataclasses
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch

from conftest import DEVICE, close
from ucfl.errors import UcflError, UcflWarning
from ucfl.execution import Batches, Plain, Recorded, Stacked, choice, gradient

USERS, FEATURES = 7, 3
COUNTS = [4, 1, 6, 3, 3, 6, 2]
device = torch.device(DEVICE)


@pytest.fixture(autouse=True)
def two_threads():
    """Chunks are shared out to threads, however many the machine's cores are."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def executors():
    """Every executor there is, by name."""
    stacked = Recorded if device.type == "cuda" else Stacked
    made = {
        f"{chunk} at a time{', traced' if traced else ''}": stacked(device, chunk, traced)
        for chunk in (1, 2, 3, 7)
        for traced in (False, True)
        if traced or chunk > 1
    }
    return {"plain": Plain(device), **made}


each_executor = pytest.mark.parametrize("name", executors())


@dataclass(frozen=True)
class Rows:
    """Row s of the user's data; a padded one is marked."""

    def __call__(self, number, each, shared):
        data, size = each
        place = number.clamp(max=len(data) - 1)
        row = data.index_select(0, place.view(1))[0]
        return row, number < size

    def exact(self, number, each, shared):
        return each[0][number], torch.ones((), dtype=torch.bool, device=each[0].device)


@dataclass(frozen=True)
class Fit:
    """θ ← θ − lr ∇ (⟨x, θ⟩ − 1)² + drift, and how many steps."""

    def __call__(self, state, batch, constants, hyper):
        theta, count = state
        row, real = batch
        (drift,), (lr,) = constants, hyper
        slope, seen = gradient(lambda at: (((row @ at) - 1) ** 2 * real, real.double()), theta)
        theta = theta - lr * slope
        return theta if drift is None else theta + drift, count + seen


def problem(drift=True):
    torch.manual_seed(0)
    data = torch.randn(USERS, max(COUNTS), FEATURES, dtype=torch.float64, device=device)
    state = torch.randn(USERS, FEATURES, dtype=torch.float64, device=device)
    steps = torch.tensor(COUNTS, device=device)
    batches = Batches(Rows(), (data, steps), (), COUNTS, steps)
    constants = (0.1 * torch.randn_like(state) if drift else None,)
    return (state, torch.zeros(USERS, dtype=torch.float64, device=device)), batches, constants


def rate(value):
    return (torch.tensor(value, dtype=torch.float64, device=device),)


def by_hand(state, batches, constants, lr):
    """The same loop with the gradient written out."""
    ends = []
    for i, count in enumerate(COUNTS):
        theta = state[0][i].clone()
        for row in batches.each[0][i, :count]:
            theta -= lr * 2 * (row @ theta - 1) * row
            if constants[0] is not None:
                theta += constants[0][i]
        ends.append(theta)
    return torch.stack(ends)


@each_executor
@pytest.mark.parametrize("drift", [True, False])
def test_users_iterate_as_often_as_they_should_and_no_more(name, drift):
    state, batches, constants = problem(drift)
    before = [part.clone() for part in state]
    theta, count = executors()[name].iterate(Fit(), state, batches, rate(0.1), constants)
    assert close(theta, by_hand(state, batches, constants, 0.1), atol=1e-12)
    assert count.tolist() == COUNTS
    assert all(map(torch.equal, state, before))


@each_executor
def test_only_what_is_wanted_comes_back(name):
    state, batches, constants = problem()
    executor = executors()[name]
    everything = executor.iterate(Fit(), state, batches, rate(0.1), constants)
    (count,) = executor.iterate(Fit(), state, batches, rate(0.1), constants, wanted=(1,))
    assert torch.equal(count, everything[1])


@each_executor
def test_results_outlive_the_next_call(name):
    state, batches, constants = problem()
    executor = executors()[name]
    first, _ = executor.iterate(Fit(), state, batches, rate(0.1), constants)
    kept = first.clone()
    executor.iterate(Fit(), (first, state[1]), batches, rate(0.2), constants)
    assert torch.equal(first, kept)


@each_executor
def test_hyper_parameters_are_data_and_nothing_is_traced_again_for_them(name):
    state, batches, constants = problem()
    executor = executors()[name]
    counts = []
    for step in range(50):
        lr = 0.1 / (1 + step)
        theta, _ = executor.iterate(Fit(), state, batches, rate(lr), constants)
        assert close(theta, by_hand(state, batches, constants, lr), atol=1e-12)
        counts.append(executor.traces)
    assert set(counts) == {counts[0]}


@dataclass(frozen=True)
class Apart:
    """Two states, two constants and two hyper-parameters, each used in its own way."""

    def __call__(self, state, batch, constants, hyper):
        (one, two), (left, right), (a, b) = state, constants, hyper
        return one + a * left, two - b * right


@each_executor
def test_one_tensor_given_twice_is_two_arguments(name):
    """A tracer that tells arguments apart by identity would make one of them."""
    executor = executors()[name]
    _, batches, _ = problem()
    zero = torch.zeros(USERS, FEATURES, dtype=torch.float64, device=device)
    ones, twos = torch.ones_like(zero), 2 * torch.ones_like(zero)
    (a,), (b,) = rate(0.5), rate(0.25)
    steps = torch.tensor(COUNTS, device=device)[:, None]
    for state, constants, hyper in (
        ((zero, zero), (ones, ones), (a, a)),
        ((zero, ones), (ones, twos), (a, b)),
    ):
        one, two = executor.iterate(Apart(), state, batches, hyper, constants)
        assert close(one, state[0] + hyper[0] * constants[0] * steps)
        assert close(two, state[1] - hyper[1] * constants[1] * steps)


@each_executor
def test_without_a_step_results_are_copies(name):
    state, batches, constants = problem()
    nothing = dataclasses.replace(batches, counts=[0] * USERS, steps=0 * batches.steps)
    theta, _ = executors()[name].iterate(Fit(), state, nothing, rate(0.1), constants)
    assert torch.equal(theta, state[0])
    assert theta.data_ptr() != state[0].data_ptr()


def product(row, matrix, shared):
    return row @ matrix, (row * shared).sum()


@each_executor
def test_a_map_is_the_function_of_every_user(name):
    rows = torch.randn(USERS, 4, dtype=torch.float64, device=device)
    matrices = torch.randn(USERS, 4, 2, dtype=torch.float64, device=device)
    shared = torch.randn(4, dtype=torch.float64, device=device)
    executor = executors()[name]
    for count in (USERS, 5, 2, 1):  # other numbers of users than it was made for
        some = rows[:count], matrices[:count]
        one, two = executor.map(product, *some, shared=(shared,))
        assert close(one, torch.stack([r @ m for r, m in zip(*some, strict=True)]), atol=1e-12)
        assert close(two, some[0] @ shared, atol=1e-12)


def summed(scale, values):
    return (scale * values).sum(), scale * values


@each_executor
def test_examples_beyond_a_users_own_may_be_padding(name):
    lengths = torch.tensor([3, 0, 5, 1, 5, 2, 4], device=device)
    scale = torch.arange(1.0, USERS + 1, dtype=torch.float64, device=device)
    values = torch.ones(USERS, 5, dtype=torch.float64, device=device)
    values *= torch.arange(5, device=device) < lengths[:, None]
    total, each = executors()[name].map(summed, scale, examples=(values,), lengths=lengths)
    assert close(total, scale * lengths)
    assert each.shape == values.shape
    assert close(each, scale[:, None] * values)


def by_sign(row):
    return (row if float(row.sum()) > 0 else -row,)


@each_executor
def test_what_cannot_be_traced_or_stacked_is_right_all_the_same_and_said_once(name, recwarn):
    executor = executors()[name]
    rows = torch.randn(USERS, 4, dtype=torch.float64, device=device)
    for _ in range(3):
        (result,) = executor.map(by_sign, rows)
        assert close(result, rows * rows.sum(1).sign()[:, None])
    said = [w for w in recwarn if issubclass(w.category, UcflWarning)]
    assert len(said) == (0 if name == "plain" else 1)
    assert str(executor).startswith("plain")


def broken(row):
    raise UcflError("this is for the person.")


@each_executor
@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")
def test_a_functions_own_error_reaches_the_person(name):
    with pytest.raises(UcflError, match="for the person"):
        executors()[name].map(broken, torch.zeros(USERS, 2, device=device))


@each_executor
@pytest.mark.parametrize("precision", ["default", "bfloat16"])
def test_precision_holds_in_every_executor_also_where_it_hands_over(name, precision):
    """The fallback of another day dropped it."""
    executor = executors()[name]
    executor = dataclasses.replace(
        executor, precision=precision, **({} if name == "plain" else {"_runs": {}})
    )
    a, b = torch.randn(USERS, 4, 4, device=device), torch.randn(USERS, 4, 4, device=device)
    low = (a.bfloat16() @ b.bfloat16()).float()
    with nullcontext() if name == "plain" else pytest.warns(UcflWarning):
        (branching,) = executor.map(branching_product, a, b)
    (plain,) = executor.map(plain_product, a, b)
    for result in (branching, plain):
        assert close(result, low if precision == "bfloat16" else a @ b, atol=1e-4)
        assert close(result, low, atol=1e-4) == (precision == "bfloat16")


def plain_product(a, b):
    return ((a @ b).float(),)


def branching_product(a, b):
    return ((a @ b).float() * (1.0 if float(a[0, 0]) > -1e9 else 0.0),)


def test_memory_of_a_users_call_bounds_how_many_go_together(monkeypatch):
    executor = Stacked(torch.device("cpu"), 6, traced=False)
    widths = []
    monkeypatch.setattr(
        Stacked, "_alone", lambda self, parts: widths.append(parts[0].stop - parts[0].start)
    )
    for load in (1.0, 2.0, 100.0):
        executor.map(product_of_one, torch.zeros(12, 2), load=load)
    assert widths == [6, 3, 2]  # never one alone: other kernels, other bits


def product_of_one(row):
    return (2 * row,)


def test_the_choice_follows_from_the_configuration(monkeypatch):
    monkeypatch.setattr(choice, "WORTH_TRACING", 16)
    options = {"bytes_per_user": lambda: 1e6, "device": torch.device("cpu")}

    def chosen(**more):
        return choice.choose(**{"users": 20, "steps": 100, "batch": 10, **options, **more})

    assert isinstance(chosen(plain=True), Plain)
    assert chosen().traced
    assert not chosen(steps=15).traced
    assert chosen(batch=64).chunk == 1
    assert isinstance(chosen(batch=64, steps=15), Plain)
    assert chosen(chunk=7).chunk == 7
    assert 2 <= chosen().chunk <= choice.STACKED
    assert chosen(compiled=True).compiled
    with pytest.raises(UcflError, match="tf32"):
        chosen(precision="half")
