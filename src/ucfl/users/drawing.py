"""How users are made of a data set, as a scenario says."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from ucfl.errors import UcflError, UcflWarning
from ucfl.memory import check_fits
from ucfl.users import datasets, partition, shifts
from ucfl.users.dataset import Dataset, Owners
from ucfl.users.form import Pair
from ucfl.users.partition import Indices
from ucfl.users.population import Users, say_who_has_no_validation
from ucfl.users.shifts import View

if TYPE_CHECKING:
    from ucfl.users.scenario import Scenario

#: Keys of generators of their own: a shift that is added leaves all other draws as they are.
PIXELS, CONFLICTS = 8, 9


def draw(scenario: Scenario, seed: int) -> Users:
    """The users of a scenario that has a named data set: same seed, same users."""
    data = datasets.load(scenario.dataset)
    rng = np.random.default_rng(seed)
    if scenario.split == "natural":
        return _people(data, scenario, seed, rng)
    if data.series is not None:
        raise UcflError(
            f"the examples of {scenario.dataset} overlap in time, so only split = 'natural' keeps "
            "training and test apart; set it."
        )
    parts = _parts(data, scenario, rng)
    views = _views(data, scenario, seed, rng)
    tests = None if scenario.test_images is None else _own_tests(data, scenario)
    return _users(data, parts, scenario, views, rng, tests)


def _parts(data: Dataset, scenario: Scenario, rng: np.random.Generator) -> list[Indices]:
    """The places of every user's examples, of those that the scenario draws."""
    chosen = _choose_points(len(data.labels), scenario, rng)
    labels, users = data.labels[chosen], scenario.users
    if scenario.split == "dirichlet":
        assert scenario.alpha is not None
        parts = partition.dirichlet(labels, users, scenario.alpha, rng)
    elif scenario.split == "sizes":
        assert scenario.sizes is not None
        parts = partition.by_size(len(labels), scenario.sizes, rng)
    elif scenario.split == "classes":
        assert scenario.classes_per_user is not None
        parts = partition.by_classes(labels, users, scenario.classes_per_user, rng)
    elif scenario.split == "lognormal":
        assert scenario.sigma is not None
        sizes = partition.lognormal_sizes(len(labels), users, scenario.sigma, rng)
        parts = partition.by_size(len(labels), sizes, rng)
    else:
        parts = partition.iid(len(labels), users, rng)
    return [chosen[part] for part in parts]


def _views(data: Dataset, scenario: Scenario, seed: int, rng: np.random.Generator) -> list[View]:
    """How each group sees examples."""
    groups, shape = scenario.groups, data.inputs.shape[1:]
    for field, asked in (
        ("rotations", bool(scenario.rotations)),
        ("permute_pixels", scenario.permute_pixels),
    ):
        if asked and len(shape) != 3:
            raise UcflError(
                f"the examples of {scenario.dataset} are no images, so {field!r} has no effect; "
                "leave it out."
            )
    # Drawn in any case: what is drawn after it must not depend on it.
    relabel = shifts.label_permutations(data.classes, groups, rng)
    if scenario.permute_labels == "conflicting":
        own = np.random.default_rng([seed, CONFLICTS])
        relabel = shifts.conflicting_permutations(data.classes, groups, own)
    own = np.random.default_rng([seed, PIXELS])
    return [
        View(
            scenario.rotations[group] if scenario.rotations else None,
            own.permutation(int(np.prod(shape[1:]))) if scenario.permute_pixels else None,
            relabel[group] if scenario.permute_labels else None,
        )
        for group in range(groups)
    ]


def _users(
    data: Dataset,
    parts: list[Indices],
    scenario: Scenario,
    views: list[View],
    rng: np.random.Generator,
    tests: list[Pair] | None = None,
) -> Users:
    """Users with these examples; ``tests`` are what all of them are validated and tested on."""
    groups = shifts.group_of_users(len(parts), scenario.groups, scenario.group_shares)
    splits: list[list[Pair]] = [[], [], []]
    for group, points in zip(groups, parts, strict=True):
        if tests is None:
            held = _held_out(data, points, scenario.held_out, rng)
            pairs = [(data.inputs[h], data.labels[h]) for h in held]
        else:
            pairs = [(data.inputs[points], data.labels[points]), *tests]
        for split, pair in zip(splits, pairs, strict=True):
            split.append(views[group](pair))
    users = Users.from_arrays(
        *splits,
        classes=data.classes,
        groups=groups if scenario.groups > 1 else None,
        source=data.source,
    )
    if scenario.held_out:
        say_who_has_no_validation(users.names, splits[1])
    return replace(users, class_names=data.class_names)


def _held_out(
    data: Dataset, points: Indices, share: float, rng: np.random.Generator
) -> list[Indices]:
    """One user's training, validation and test examples; recordings are cut in time."""
    if data.series is None:
        return [points[held] for held in partition.hold_out(len(points), share, rng)]
    of = data.series[points]
    cut = [
        [
            points[of == one][held]
            for held in partition.hold_out_in_time(int((of == one).sum()), share)
        ]
        for one in np.unique(of)
    ]
    return [np.concatenate(part) for part in zip(*cut, strict=True)]


def _people(data: Dataset, scenario: Scenario, seed: int, rng: np.random.Generator) -> Users:
    """A user for each owner of examples; those of the data set's test examples come later."""
    if data.owners is None:
        raise UcflError(
            f"{scenario.dataset} does not say whose its examples are; choose another split, or a "
            "data set of people (qmnist, watch, shakespeare)."
        )
    views = _views(data, scenario, seed, rng)
    users = _owned(data, data.owners, scenario, views, rng)
    if data.test_owners is None or data.test_inputs is None or data.test_labels is None:
        return users
    others = replace(data, inputs=data.test_inputs, labels=data.test_labels)
    late = _owned(others, data.test_owners, scenario, views, rng)
    ids = torch.arange(len(users), len(users) + len(late))  # nobody draws another's batches
    return replace(users, newcomers=replace(late, ids=ids))


def _owned(
    data: Dataset,
    owners: Owners,
    scenario: Scenario,
    views: list[View],
    rng: np.random.Generator,
) -> Users:
    """A user for each owner that has enough examples, with its name."""
    counts = np.bincount(owners.of, minlength=len(owners.names))
    kept = np.flatnonzero(counts >= scenario.fewest)
    if len(kept) < scenario.groups:
        raise UcflError(
            f"{len(kept)} of the {len(counts)} people of {scenario.dataset} have {scenario.fewest} "
            f"examples or more, too few for a federation of {scenario.groups} groups; lower "
            "'fewest'."
        )
    if len(kept) < len(counts):
        warnings.warn(
            f"{len(counts) - len(kept)} of {len(counts)} people of {scenario.dataset} have fewer "
            f"than {scenario.fewest} examples and are left out.",
            UcflWarning,
            stacklevel=2,
        )
    by_owner = np.split(np.argsort(owners.of, kind="stable"), np.cumsum(counts)[:-1])
    users = _users(data, [by_owner[i] for i in kept], scenario, views, rng)
    return replace(users, names=tuple(owners.names[i] for i in kept))


def _choose_points(available: int, scenario: Scenario, rng: np.random.Generator) -> Indices:
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
    check_fits(
        2.0 * scenario.users * count * data.inputs[0].nbytes,
        f"{count} test and as many validation images for each of {scenario.users} users",
        "take fewer of either",
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
