"""Options have bounds, the same for what is typed and what is made in Python."""

import dataclasses
import math

import pytest

import ucfl
from ucfl.algorithms import REGISTRY, find
from ucfl.algorithms.fedprox import FedProx
from ucfl.errors import UcflError
from ucfl.federation import LocalTraining

NUMBERS = [
    (name, field.name)
    for name, kind in REGISTRY.items()
    for field in dataclasses.fields(kind)
    if not {"Literal", "PartName", "bool"} & {*field.type.replace("[", " ").split()}
    or "int" in field.type
]


def refusals(name, option, value):
    """The sentences by either way; None where the value is taken."""
    said = []
    for make in (
        lambda: find(f"{name}:{option}={value}"),
        lambda: REGISTRY[name](**{option: value}),
    ):
        try:
            make()
            said.append(None)
        except UcflError as error:
            said.append(str(error))
    return said


@pytest.mark.parametrize(("name", "option"), NUMBERS)
def test_every_number_has_bounds_by_either_way(name, option):
    for value in (math.nan, math.inf, -math.inf, -2, 10**40, 1e39):
        typed, made = refusals(name, option, value)
        assert typed is not None, value
        assert typed == made or "valid integer" in typed, value
        assert made.startswith(f"{name}: {option}={value}: ")
        assert "\n" not in typed


def test_the_numbers_are_all_of_them():
    assert len(NUMBERS) == 52
    without = {"fedavg", "local", "oracle", "fedper", "lg-fedavg", "fedbn"}
    assert {name for name, _ in NUMBERS} == {*REGISTRY} - without


@pytest.mark.parametrize(
    "text",
    ["fedprox:mu=nan", "pfedme:lr=-1", "user-centric:variance_batch=-1", "pfedme:lr=inf",
     "scaffold:lr=0", "fedem:components=0", "fedem:components=1000000000", "scaffold:epochs=0",
     "fedavg-finetune:epochs=1000000000", "fl-hc:threshold=1.5", "user-centric:streams=0"],
)  # fmt: skip
def test_what_was_accepted_once(text):
    with pytest.raises(UcflError, match="Input should be"):
        find(text)


def test_one_and_one_point_zero_are_one_setting():
    assert FedProx(mu=1).label == find("fedprox:mu=1").label == "fedprox:mu=1.0"


def test_training_has_the_same_bounds():
    for wrong in ({"lr": math.inf}, {"momentum": 1}, {"batch": 0}, {"epochs": 0}, {"steps": -1}):
        with pytest.raises(UcflError, match=r"local training: .*Input should be"):
            LocalTraining(**wrong)


@pytest.mark.parametrize("seed", [-1, 2**63, 10**40])
def test_seeds_are_what_all_generators_take(seed):
    with pytest.raises(UcflError, match="a seed is a whole number from 0 to"):
        ucfl.run("rotated-mnist", "fedavg", seed=seed)
