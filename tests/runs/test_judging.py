"""Runs are judged by the first metric of their objective; what cannot be one is refused."""

import math

import numpy as np
import pytest
import torch.nn.functional as F  # noqa: N812

import ucfl
from federation.test_objectives import CASES, huber, small
from ucfl.errors import UcflError
from ucfl.federation import Federation, Metric, Objective, create, objective
from ucfl.runs.compare import Comparison
from ucfl.users import Scenario, Users


def sine_users():
    """Noisy sines of two phases: regression with two groups."""
    rng = np.random.default_rng(0)

    def pair(n, phase):
        x = rng.uniform(-2, 2, (n, 1)).astype(np.float32)
        return x, (np.sin(2 * x[:, 0] + phase) + 0.1 * rng.normal(size=n)).astype(np.float32)

    sizes = [40, 25, 60, 31]
    splits = [[pair(n, np.pi * (i % 2)) for i, n in enumerate(sizes)] for _ in range(3)]
    return Users.from_arrays(*splits, groups=[0, 1, 0, 1])


SINES = Scenario(name="sines", model="mlp", objective="regression", batch=8, lr=0.02, rounds=4)


def test_a_run_is_judged_by_its_metric(tmp_path):
    runs = {
        name: ucfl.run(SINES, name, users=sine_users(), out=tmp_path / name)
        for name in ("fedavg", "oracle", "user-centric:streams=2", "fedem", "fedmoe")
    }
    one = runs["fedavg"]
    assert one.measure.name == "squared_error"
    assert not one.measure.more_is_better
    assert {*one.history["metric"]} == {
        f"{split}_{metric}"
        for split in ("test", "validation")
        for metric in ("squared_error", "absolute_error", "r2")
    }
    test, validation = one.per_user("test_squared_error"), one.per_user("validation_squared_error")
    best = 1 + int(validation[1:].mean(1).argmin())
    assert one.summary["best_round"] == best
    assert one.summary["worst"]["final"] == pytest.approx(test[-1].max())
    assert one.summary["mean"]["best"] == pytest.approx(test[best].mean())
    assert runs["oracle"].summary["mean"]["final"] < one.summary["mean"]["final"]


def test_comparisons_put_the_lowest_error_first(tmp_path):
    users = sine_users()
    found = {
        name: [ucfl.run(SINES, name, users=users, out=tmp_path / name)]
        for name in ("fedavg", "oracle")
    }
    table = Comparison(SINES, (0,), found).to_json()
    assert [*table["algorithms"]] == ["oracle", "fedavg"]
    assert table["metric"] == {"name": "squared_error", "more_is_better": False, "percent": False}


def test_a_loss_that_is_changed_is_another_run(tmp_path):
    def wider(outputs, targets):
        return F.huber_loss(outputs[:, 0], targets, reduction="none", delta=0.1)

    first = Objective(lambda out, y: huber(out, y).float(), name="huber")
    scenario = SINES.change({"objective": "classification"})
    ucfl.run(scenario, "local", users=sine_users(), objective=first, out=tmp_path / "r", rounds=2)
    with pytest.raises(UcflError, match=r"--resume|--fresh"):
        ucfl.run(
            scenario,
            "local",
            users=sine_users(),
            objective=Objective(wider, name="huber"),
            out=tmp_path / "r",
            rounds=4,
            resume=True,
        )


def near(within):
    return lambda out, y: ((out[:, 0] - y).abs() < within).float()


@pytest.mark.parametrize(
    "changed",
    [
        {"near": Metric(near(0.9))},
        {"near": Metric(near(0.3)), "more": Metric(near(0.9))},
        {"near": Metric(near(0.3), more_is_better=False)},
        {"other": Metric(near(0.3))},
    ],
)
def test_a_run_whose_metrics_are_changed_is_not_continued(changed, tmp_path):
    options = {"users": sine_users(), "out": tmp_path / "r"}
    first = Objective(huber, {"near": Metric(near(0.3))}, name="mine")
    ucfl.run(SINES, "local", objective=first, rounds=2, **options)
    other = Objective(huber, changed, name="mine")
    with pytest.raises(UcflError, match="metrics"):
        ucfl.run(SINES, "local", objective=other, rounds=4, resume=True, **options)
    again = Objective(huber, {"near": Metric(near(0.3))}, name="mine")
    assert ucfl.run(SINES, "local", objective=again, rounds=4, resume=True, **options)


# --- what does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Objective(lambda out, y: F.mse_loss(out[:, 0], y)), "shape .* one number for each"),
        (Objective(lambda out, y: out[:, 0].round().long()), "one number for each"),
        (Objective(lambda out, y: out[:, 7]), "fails on the model's outputs"),
        (Objective(lambda out, y: huber(out, y).detach()), "has no gradient"),
        (Objective(huber, {"odd": Metric(near(1), lambda s, c: s[:, 0] / 0)}), "one finite number"),
        (Objective(huber, {"odd": Metric(near(1), lambda s, c: s)}), "one finite number"),
        (Objective(huber, {"odd": Metric(near(1), lambda s: s)}), r"by its value\(\), fails"),
        (
            Objective(huber, {"odd": Metric(near(1), lambda s, c: "good")}),
            "gives str, not a tensor",
        ),
        (Objective(huber, {"odd": lambda out, y: out[:, 0] * math.nan}), "'odd' gives NaN"),
        (Objective(huber, {"odd": lambda out, y: out.mean()}), "'odd' gives a tensor of shape"),
        (Objective(huber, {"odd": lambda out, y: 3.0}), "'odd' gives float, not a tensor"),
        (Objective(huber, {"odd": Metric(lambda out, y: out[0, 9])}), "'odd' fails"),
        ("classification", "a class for each example, in whole numbers; these users' are float"),
        ("next-token", "a class for each position of a sequence"),
        ("regression:loss=cubic", "squared or absolute"),
        ("regression:power=3", "has one option, loss"),
        ("classification:loss=absolute", "has no options"),
        ("clasification", "did you mean 'classification'"),
        ("nowhere:loss", "could not be loaded"),
        ("math:pi", "not a ucfl.Objective"),
    ],
)
def test_what_does_not_fit_is_one_sentence(given, message, tmp_path):
    with pytest.raises(UcflError, match=message) as found:
        ucfl.run(SINES, "local", users=sine_users(), objective=given, out=tmp_path / "r")
    assert "\n" not in str(found.value)
    assert str(found.value).endswith((".", ")"))
    assert not (tmp_path / "r").exists()


def test_classes_are_no_numbers_and_outputs_must_fit(tmp_path):
    users = CASES["classification"].users()
    with pytest.raises(UcflError, match="floating-point numbers; these users' are a class"):
        ucfl.run(SINES, "local", users=users, out=tmp_path / "r")
    with pytest.raises(UcflError, match=r"outputs of shape \(3,\) .* needs \(5,\)"):
        Federation(users, small(3)())
    model = create("mlp", (1,), 2, seed=0)
    with pytest.raises(UcflError, match=r"outputs of shape \(2,\) .* needs \(1,\)"):
        Federation(sine_users(), model, objective=objective("regression"))


@pytest.mark.parametrize("name", ["fedem", "fedmoe"])
def test_predictions_are_mixed_only_where_the_objective_says_how(name, tmp_path):
    own = Objective(lambda out, y: huber(out, y).float(), name="huber")
    with pytest.raises(UcflError, match=f"{name} mixes the predictions"):
        ucfl.run(SINES, name, users=sine_users(), objective=own, out=tmp_path / "r")
