"""How users are made of a data set, as a scenario says."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from ucfl.errors import UcflError, UcflWarning
from ucfl.memory import check_fits
from ucfl.users import datasets, partition, shifts
from ucfl.users.dataset import Dataset
from ucfl.users.form import Pair
from ucfl.users.population import Users

if TYPE_CHECKING:
    from ucfl.users.scenario import Scenario


def draw(scenario: Scenario, seed: int) -> Users:
    """The users of a scenario that has a named data set: same seed, same users."""
    data = datasets.load(scenario.dataset)
    rng = np.random.default_rng(seed)
    chosen = _choose_points(len(data.labels), scenario, rng)
    labels = data.labels[chosen]
    if scenario.split == "dirichlet":
        assert scenario.alpha is not None
        parts = partition.dirichlet(labels, scenario.users, scenario.alpha, rng)
    elif scenario.split == "sizes":
        assert scenario.sizes is not None
        parts = partition.by_size(len(labels), scenario.sizes, rng)
    else:
        parts = partition.iid(len(labels), scenario.users, rng)

    groups = shifts.group_of_users(scenario.users, scenario.groups)
    relabel = shifts.label_permutations(data.classes, scenario.groups, rng)

    def seen_by(user: int, pair: Pair) -> Pair:
        """The pair as the user's group sees it."""
        inputs, answers = pair
        if scenario.rotations:
            inputs = shifts.rotate(inputs, scenario.rotations[groups[user]])
        if scenario.permute_labels:
            answers = relabel[groups[user]][answers]
        return inputs, answers

    if scenario.test_images is not None:
        check_fits(
            2.0 * scenario.users * scenario.test_images * data.inputs[0].nbytes,
            f"{scenario.test_images} test and as many validation images for each of "
            f"{scenario.users} users",
            "take fewer of either",
        )
    splits: list[list[Pair]] = [[], [], []]
    for user, part in enumerate(parts):
        points = chosen[part]
        if scenario.test_images is None:
            held = partition.hold_out(len(points), scenario.held_out, rng)
            pairs = [(data.inputs[points[h]], data.labels[points[h]]) for h in held]
        else:
            pairs = [(data.inputs[points], data.labels[points]), *_own_tests(data, scenario)]
        for split, pair in zip(splits, pairs, strict=True):
            split.append(seen_by(user, pair))
    return Users.from_arrays(
        *splits,
        classes=data.classes,
        groups=groups if scenario.groups > 1 else None,
        source=data.source,
    )


def _choose_points(available: int, scenario: Scenario, rng: np.random.Generator) -> Any:
    wanted = scenario.points or available
    if wanted > available:
        warnings.warn(
            f"{scenario.dataset} holds {available:,} of the {wanted:,} points asked for; "
            "all of them are used.",
            UcflWarning,
            stacklevel=3,
        )
    return np.sort(rng.permutation(available)[:wanted])


def _own_tests(data: Dataset, scenario: Scenario) -> list[Pair]:
    """Validation and test pairs from the data set's own test images."""
    count = scenario.test_images or 0
    if data.test_inputs is None or data.test_labels is None:
        raise UcflError(
            f"{scenario.dataset} has no test images of its own; leave test_images out, and "
            "held_out decides."
        )
    if 2 * count > len(data.test_labels):
        raise UcflError(
            f"{count} test and {count} validation images are more than the "
            f"{len(data.test_labels)} that {scenario.dataset} has."
        )
    return [
        (data.test_inputs[part], data.test_labels[part])
        for part in (slice(count, 2 * count), slice(count))
    ]
